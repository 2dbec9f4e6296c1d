import math

import torch

from polysem import sets
from polysem.models.build import build_tower
from support import alone, assert_close, batch, shaken


def test_against_the_formula():
    part = shaken(sets.build("attention_pooling", dim=6, k=3, input_dim=10, hidden=14, attention=5))
    features = batch(10)
    found = part(features)
    for item in range(4):
        x = alone(features, item).values[0]
        logits = torch.tanh(x @ part.w_1.weight.t() + part.w_1.bias) @ part.w_2.weight.t() + part.w_2.bias
        for element in range(3):
            weights = torch.exp(logits[:, element]) / torch.exp(logits[:, element]).sum()
            read = weights @ x
            inner = part.mlp[0](read)
            gelu = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
            residual = part.fc.weight @ read + part.fc.bias + part.mlp[3].weight @ gelu
            assert_close(found.attention[item, element, features.mask[item]], weights, atol=2e-6)
            assert_close(found.residual[item, element], residual, atol=5e-6)
            assert_close(found.vectors[item, element], residual / residual.norm(), atol=5e-6)


def test_an_element_more_costs_one_row_of_attention():
    one, four = (sets.build("attention_pooling", dim=6, k=k, hidden=14, attention=5) for k in (1, 4))
    count = [sum(parameter.numel() for parameter in part.parameters()) for part in (one, four)]
    assert count[1] - count[0] == 3 * (5 + 1)


def test_elements_that_look_alike_are_alike():
    """Nothing but where it looks tells one element from another."""
    part = shaken(sets.build("attention_pooling", dim=6, k=2, hidden=14, attention=5))
    with torch.no_grad():
        part.w_2.weight[1] = part.w_2.weight[0]
        part.w_2.bias[1] = part.w_2.bias[0] + 3
    vectors = part(batch(6)).vectors
    assert_close(vectors[:, 0], vectors[:, 1], atol=1e-6)


def test_dropout_works_in_training_alone():
    torch.manual_seed(0)
    part, features = sets.build("attention_pooling", dim=6, dropout=0.5), batch(6)
    assert not torch.equal(part(features).vectors, part(features).vectors)
    part.eval()
    assert torch.equal(part(features).vectors, part(features).vectors)


def test_an_encoder_before_it_keeps_its_width():
    """It projects by itself: to put the encoder's own projection before it would be one too many."""
    readings, slots = {"name": "attention_pooling", "k": 2}, {"name": "slots", "add_global": False}
    encoder = {"name": "frames", "input_dim": 10}
    tower = build_tower("image", {"encoder": encoder, "sets": readings}, 6)
    assert (tower.encoder.dim, tower.sets.input_dim, tower.sets.dim) == (10, 10, 6)
    assert build_tower("image", {"encoder": encoder, "sets": slots}, 6).encoder.dim == 6
    asked = build_tower("image", {"encoder": {**encoder, "dim": 7}, "sets": readings}, 6)
    assert (asked.encoder.dim, asked.sets.input_dim) == (7, 7)
    projected = {"encoder": encoder, "project": {"name": "region"}, "sets": readings}
    assert build_tower("image", projected, 6).sets.input_dim == 6
    assert build_tower("image", {**projected, "local": "encoded"}, 6).sets.input_dim == 10
