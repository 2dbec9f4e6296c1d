"""Competing readings around a global vector, and the same residual start of other predictors."""

import math
from dataclasses import replace

import pytest
import torch

from encoders import tiny_models
from polysem import sets
from polysem.errors import PolysemError
from polysem.models.build import build_tower
from support import alone, assert_close, batch, shaken

BASES = {
    "default": None,
    "single": {"name": "single", "pooling": "gpo"},
    "attention_pooling": {"name": "attention_pooling", "k": 1, "hidden": 14, "attention": 6},
    "global_feature": {"name": "global_feature"},
    "pie_net": {"name": "pie_net", "k": 1},
    "nested": {"name": "competing_readings", "k": 1},
}


def build(**knobs) -> sets.SetPredictor:
    torch.manual_seed(0)
    return shaken(sets.build("competing_readings", **{"dim": 6, "input_dim": 10, "k": 3, "hidden": 5, **knobs}))


def unit(x: list[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in x))
    return [value / length for value in x]


def linear(part, x: list[float]) -> list[float]:
    weights, biases = part.weight.tolist(), part.bias.tolist()
    return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in zip(weights, biases, strict=True)]


def obvious(part, x: list[list[float]], competition: bool) -> tuple[list[list[float]], list[list[float]]]:
    """Shares (K, N) and vectors (K, D) of one item, one number at a time."""
    tokens, width, k = len(x), len(x[0]), part.w_2.weight.shape[0]
    logits = [linear(part.w_2, [math.tanh(value) for value in linear(part.w_1, token)]) for token in x]
    if part.cell_bias is not None:
        logits = [[logits[n][e] + part.cell_bias[e, n].item() for e in range(k)] for n in range(tokens)]
    weights = [[math.exp(logit) for logit in row] for row in logits]
    if competition and k > 1:
        weights = [[weight / sum(row) for weight in row] for row in weights]
    step_size = part.gamma.item()
    center = unit(linear(part.base_map, [sum(token[d] for token in x) / tokens for d in range(width)]))
    shares, vectors = [], []
    for e in range(k):
        total = sum(weights[n][e] for n in range(tokens))
        shares.append([weights[n][e] / total for n in range(tokens)])
        read = [sum(shares[e][n] * x[n][d] for n in range(tokens)) for d in range(width)]
        step = unit(linear(part.head, read))
        vectors.append(unit([c + step_size * s for c, s in zip(center, step, strict=True)]))
    return shares, vectors


@pytest.mark.parametrize("competition", [True, False])
@pytest.mark.parametrize("cells", [None, 9])
@pytest.mark.parametrize("k", [1, 3])
def test_against_the_formula(competition, cells, k):
    part = build(k=k, competition=competition, cells=cells)
    features = batch(10)
    found = part(features)
    for item in range(4):
        shares, vectors = obvious(part, alone(features, item).values[0].tolist(), competition)
        reading = part.token_shares(found)[0, item][:, features.mask[item]]
        assert_close(reading, torch.tensor(shares), atol=5e-6)
        assert_close(found.vectors[item], torch.tensor(vectors), atol=5e-6)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("input_dim", [6, 10])
def test_without_a_step_every_element_is_the_vector_of_the_base(base, input_dim):
    part = build(base=BASES[base], gamma=0.0, learn_gamma=False, input_dim=input_dim, keep_global=True)
    features = batch(input_dim)
    shared = torch.randn(len(features), 6) if part.needs_global else None
    assert part.needs_global == (base in ("global_feature", "pie_net"))
    found = part(features, shared)
    assert_close(found.vectors, found.global_vector[:, None].expand(-1, 4, -1), atol=1e-6)
    if base == "default":
        means = torch.stack([alone(features, item).values[0].mean(0) for item in range(len(features))])
        own = part.base_map(means)
    elif part.base_map is None:
        own = part.base(features, shared).vectors[:, 0]
    else:
        own = part.base_map(part.base.pooling(features))
    assert_close(found.global_vector, torch.nn.functional.normalize(own, dim=-1), atol=1e-6)


def test_competing_elements_share_out_each_token():
    part, features = build(), batch(10)
    found = part(features)
    assert part.elements_compete
    assert_close(found.attention.sum(1), features.mask.float(), atol=1e-6)
    assert torch.equal(found.attention_steps[0, :, 0], found.attention)
    for alone_knobs in ({"competition": False}, {"k": 1}, {"keep_global": True}):
        assert not build(**alone_knobs).elements_compete


def test_an_element_that_loses_every_token_still_reads():
    """In plain numbers its shares would be 0 / 0."""
    part, features = build(cells=9), batch(10)
    with torch.no_grad():
        part.cell_bias[1] -= 500
    found = part(features)
    assert found.vectors.isfinite().all()
    found.vectors.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in part.parameters())


def test_a_global_element_is_the_last_and_reads_every_token_alike():
    part, features = build(keep_global=True), batch(10)
    found = part(features)
    assert part.k == 4
    assert torch.equal(found.vectors[:, 3], found.global_vector)
    assert_close(found.attention[1, 3, :4], torch.full((4,), 0.25), atol=1e-6)


@pytest.mark.parametrize("learn", [True, False])
def test_gamma_learns_or_stays(learn):
    part = sets.build("competing_readings", dim=6, k=2, gamma=0.25, learn_gamma=learn)
    assert ("gamma" in dict(part.named_parameters())) == learn
    assert part.gamma.item() == 0.25
    assert "gamma" in part.state_dict()


def test_dropout_works_in_training_alone():
    part, features = sets.build("competing_readings", dim=6, dropout=0.5, gamma=0.0, learn_gamma=False), batch(6)
    assert not torch.equal(part(features).vectors, part(features).vectors)  # of the mean too
    part.eval()
    assert torch.equal(part(features).vectors, part(features).vectors)


def test_more_tokens_than_cells_are_refused():
    with pytest.raises(PolysemError, match=r"each of 4 cells.*9 tokens.*cells=9"):
        build(cells=4)(batch(10))


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ({"k": 1}, "name"),
        ({"name": "slots", "k": 4}, r"one vector.*'k': 4"),
        ({"name": "singular"}, "single"),
        ({"name": "single", "poolin": "gpo"}, "poolin"),
    ],
)
def test_bases_that_cannot_be(base, said):
    with pytest.raises(PolysemError, match=said):
        sets.check("competing_readings", base=base)
    with pytest.raises(PolysemError, match=said):
        sets.build("competing_readings", dim=6, base=base)


def test_an_encoder_before_it_keeps_its_width():
    encoder = {"name": "frames", "input_dim": 10}
    tower = build_tower("image", {"encoder": encoder, "sets": {"name": "competing_readings", "k": 2}}, 6)
    assert (tower.encoder.dim, tower.sets.input_dim, tower.sets.dim) == (10, 10, 6)


def test_local_elements_begin_in_their_own_part_of_the_grid():
    for k, cells in ((16, 16), (4, 16), (3, 7)):
        part = sets.build("competing_readings", dim=6, k=k, cells=cells, local=6.0)
        homes = part.cell_bias.detach().argmax(0)
        assert part.cell_bias.detach().sum() == 6 * cells
        assert homes.unique().tolist() == list(range(k))
        if k == 4:
            assert homes.view(4, 4).tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]
    part = sets.build("competing_readings", dim=6, k=16, cells=16, local=6.0).eval()
    with torch.no_grad():
        part.w_2.weight.zero_()
        part.w_2.bias.zero_()
    shares = part.token_shares(part(batch(6, lengths=(16,))))[0, 0]
    assert shares.diagonal().min() > 0.9
    assert "local" not in sets.build("competing_readings", dim=6).original_knobs()
    with pytest.raises(PolysemError, match=r"local=6\.0.*8 elements"):
        sets.build("competing_readings", dim=6, k=8, cells=4, local=6.0)


def test_cells_are_those_of_the_encoder(tmp_path):
    tiny_models.save("resnet", tmp_path / "resnet")
    encoder = {"name": "grid", "model": str(tmp_path / "resnet"), "image_size": 64}
    readings = {"name": "competing_readings", "k": 2}
    tokens = build_tower("image", {"encoder": encoder, "sets": {**readings, "cells": None}}, 6).encoder.tokens_per_item
    assert build_tower("image", {"encoder": encoder, "sets": {**readings, "cells": tokens}}, 6).sets.cells == tokens
    with pytest.raises(PolysemError, match=rf"each of {tokens + 1} cells.*{tokens} local.*sets\.cells={tokens}"):
        build_tower("image", {"encoder": encoder, "sets": {**readings, "cells": tokens + 1}}, 6)


@pytest.mark.parametrize("name", ["slots", "transformer", "pie_net"])
def test_a_residual_start_of_other_predictors(name):
    features, shared = batch(10), torch.randn(4, 6)
    part = shaken(sets.build(name, dim=6, input_dim=10, gamma=0.5))
    found = part(features, shared)
    center, step = (torch.nn.functional.normalize(x, dim=-1) for x in (shared, found.residual))
    joined = center[:, None] + part.gamma * step
    assert_close(found.vectors, joined / joined.norm(dim=-1, keepdim=True), atol=1e-6)
    assert_close(found.global_vector, center, atol=1e-6)
    assert part.gamma.requires_grad
    start = sets.build(name, dim=6, input_dim=10, gamma=0.0).eval()
    assert_close(start(features, shared).vectors, center[:, None].expand(-1, 4, -1), atol=1e-6)


@pytest.mark.parametrize("name", ["slots", "transformer", "pie_net"])
def test_without_gamma_weights_and_fingerprinted_knobs_are_those_of_before(name):
    part = sets.build(name, dim=6)
    assert not any("gamma" in key for key in part.state_dict())
    assert part.config["gamma"] is None
    assert "gamma" not in part.original_knobs()
    assert sets.build(name, dim=6, gamma=0.5).original_knobs()["gamma"] == 0.5


def test_gamma_needs_a_global_feature():
    with pytest.raises(PolysemError, match=r"gamma=0\.5.*add_global"):
        sets.build("slots", dim=6, gamma=0.5, add_global=False)


def test_elements_read_the_first_numbers_of_a_token_and_the_base_all():
    part, features = build(reads=7, keep_global=True), batch(10)
    other = replace(features, values=features.values + torch.cat([torch.zeros(7), torch.ones(3)]))
    first, second = part(features), part(other)
    assert_close(first.residual, second.residual, atol=1e-6)
    assert_close(first.attention, second.attention, atol=1e-6)
    assert (first.global_vector - second.global_vector).norm(dim=-1).min() > 1e-3
    changed = part(replace(features, values=features.values + torch.cat([torch.ones(7), torch.zeros(3)])))
    assert (first.residual - changed.residual).norm(dim=-1).min() > 1e-3
    with pytest.raises(PolysemError, match="reads=11: a token has 10 numbers"):
        build(reads=11)


@pytest.mark.parametrize("keep_global", [True, False])
def test_sums_over_tokens_know_what_the_elements_read(keep_global):
    part, features = build(reads=7, keep_global=keep_global).eval(), batch(10)
    made, exact = part(features), part.as_set_sum(features)
    assert_close(exact.vectors, made.vectors, atol=1e-5)
    # What an element does not read moves its vector through the global one alone.
    assert exact.parts[0].values.shape[-1] == part.dim
    assert made.residual.shape[1] == 3


def test_reading_all_is_the_default():
    part, features = build(), batch(10)
    assert part.reads == 10
    assert_close(build(reads=10)(features).vectors, part(features).vectors, atol=0)
