import pytest
import torch

from polysem import LocalFeatures, PolysemError, sets
from support import alone, assert_close, batch, load_case, shaken

SMALL = {"layers": 2, "heads": 2, "ff": 10}


def released(**knobs):
    case = load_case("labelwise_shared")
    sizes = {"dim": case.meta["num_classes"], "input_dim": case.meta["d_model"], "ff": case.meta["d_ff"]}
    part = sets.build("semantic_sharing", **sizes, layers=case.meta["layers"], heads=case.meta["heads"], **knobs)
    return case, part.load_official(case.weight).eval()


@pytest.mark.parametrize("variant", ["paper", "official"])
@pytest.mark.parametrize("side", ["img", "txt"])
def test_the_released_transformer_and_head(side, variant):
    case, part = released(normalise=False, variant=variant)
    values = case.input[side]
    features = LocalFeatures.from_lengths(values, [values.shape[1]] * len(values))
    assert_close(part.token_classes(features), case.output[f"{side}_prediction"], atol=1e-6)
    found = part(features)
    assert_close(found.vectors[:, 0], case.output[f"{side}_vector"], atol=1e-6)
    assert torch.equal(found.vectors, found.residual)


@pytest.mark.parametrize("side", ["img", "txt"])
def test_normalised_it_has_the_released_directions(side):
    case, part = released()
    values = case.input[side]
    found = part(LocalFeatures.from_lengths(values, [values.shape[1]] * len(values)))
    assert_close(found.vectors[:, 0], torch.nn.functional.normalize(case.output[f"{side}_vector"], dim=-1), atol=1e-6)


def test_heads_that_no_embedding_depends_on_are_dropped_and_foreign_tensors_named():
    case, part = released()
    unused = {"transformer.fc_predict.weight": torch.zeros(6, 16)}
    part.load_official({**case.weight, **unused})
    with pytest.raises(PolysemError, match=r"Unknown tensor .*decoder\.norm\.a_2"):
        part.load_official({**case.weight, "transformer.decoder.norm.a_2": torch.zeros(16)})
    with pytest.raises(PolysemError, match=r"no tensor for 'norm\.bias'"):
        part.load_official({k: v for k, v in case.weight.items() if k != "transformer.encoder.norm.b_2"})


def test_padding_counts_in_the_official_variant_alone():
    values = torch.randn(1, 5, 8)
    few, more = (LocalFeatures.from_lengths(torch.cat([values, torch.zeros(1, n, 8)], 1), [5]) for n in (0, 3))
    for variant, depends in (("paper", False), ("official", True)):
        torch.manual_seed(0)
        part = shaken(sets.build("semantic_sharing", dim=6, input_dim=8, variant=variant, **SMALL))
        difference = (part(few).residual - part(more).residual).abs().max()
        assert difference > 1e-3 if depends else difference < 1e-6


def obvious_norm(norm, x):
    return norm.weight * (x - x.mean()) / ((((x - x.mean()) ** 2).sum() / (len(x) - 1)).sqrt() + 1e-6) + norm.bias


def obvious_classes(part, x):
    """One unpadded item, token by token and head by head, straight from the formulas."""
    for layer in part.layers:
        normed = torch.stack([obvious_norm(layer.attention_norm, token) for token in x])
        width = x.shape[1] // layer.heads
        read = []
        for head in range(layer.heads):
            cut = slice(head * width, (head + 1) * width)
            q, k, v = (m(normed)[:, cut] for m in (layer.query, layer.key, layer.value))
            shares = torch.exp(q @ k.t() / width**0.5)
            read.append(shares / shares.sum(1, keepdim=True) @ v)
        x = x + layer.out(torch.cat(read, -1))
        normed = torch.stack([obvious_norm(layer.feed_norm, token) for token in x])
        x = x + layer.contract(layer.expand(normed).clamp(min=0))
    hidden = torch.stack([obvious_norm(part.norm, token) for token in x]).clamp(min=0)
    said = 1 / (1 + torch.exp(-part.predict_classes(hidden)))
    return (said / said.norm(dim=-1, keepdim=True)).mean(0)


def test_against_the_formulas():
    part = shaken(sets.build("semantic_sharing", dim=6, input_dim=8, **SMALL))
    features = batch(8)
    found = part(features)
    for item in range(4):
        expected = obvious_classes(part, alone(features, item).values[0])
        assert_close(found.residual[item, 0], expected, atol=2e-6)
        assert_close(found.vectors[item, 0], expected / expected.norm(), atol=2e-6)


def test_every_real_token_has_the_same_say():
    features = batch(8, (5, 2))
    shares = shaken(sets.build("semantic_sharing", dim=6, input_dim=8, **SMALL))(features).attention
    assert_close(shares[:, 0], torch.tensor([[0.2] * 5, [0.5, 0.5, 0.0, 0.0, 0.0]]), atol=1e-7)


def test_dropout_acts_in_training_alone():
    part = sets.build("semantic_sharing", dim=6, input_dim=8, dropout=0.5, **SMALL)
    features = batch(8)
    assert not torch.equal(part(features).vectors, part(features).vectors)
    part.eval()
    plain = sets.build(**{**part.config, "dropout": 0.0}).eval()
    plain.load_state_dict(part.state_dict())
    assert torch.equal(part(features).vectors, plain(features).vectors)


def test_impossible_sizes_are_named():
    with pytest.raises(PolysemError, match="input_dim=10 does not divide into heads=4"):
        sets.build("semantic_sharing", dim=6, input_dim=10, heads=4)
    with pytest.raises(PolysemError, match="input_dim"):
        sets.build("semantic_sharing", dim=6, input_dim=1, heads=1)
