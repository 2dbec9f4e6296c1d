"""What must hold for every set predictor, whatever it computes."""

import json

import pytest
import torch

from polysem import LocalFeatures, PolysemError, sets
from support import alone, batch, shaken

DIM, WIDTH = 12, 10
SMALL = {"heads": 2, "head_dim": 6, "ff_mult": 2, "iterations": 3}
SETTINGS = {
    "slots": {"name": "slots", **SMALL},
    "slots-sine": {"name": "slots", "position": "sine", **SMALL},
    "slots-untied": {"name": "slots", "tied": False, **SMALL},
    "slots-drawn": {"name": "slots", "learned_slots": False, **SMALL},
    "slots-gru": {"name": "slots", "residual_update": False, **SMALL},
    "slots-alone": {"name": "slots", "add_global": False, **SMALL},
    "slots-original": {
        "name": "slots",
        "learned_slots": False,
        "residual_update": False,
        "add_global": False,
        **SMALL,
    },
    "slots-one": {"name": "slots", "k": 1, **SMALL},
    "transformer": {"name": "transformer", **SMALL},
    "transformer-sine": {"name": "transformer", "position": "sine", **SMALL},
    "pie_net": {"name": "pie_net"},
    "pie_net-one": {"name": "pie_net", "k": 1},
    "attention_pooling": {"name": "attention_pooling", "hidden": 14, "attention": 6},
    "readings-one": {"name": "attention_pooling", "k": 1, "hidden": 14, "attention": 6},
    "ensemble": {
        "name": "ensemble",
        "members": [{"name": "attention_pooling", "k": 2, "hidden": 14, "attention": 6}, {"name": "pie_net", "k": 1}],
    },
    "competing": {"name": "competing_readings", "k": 3, "hidden": 6},
    "competing-one": {"name": "competing_readings", "k": 1, "hidden": 6},
    "competing-cells": {"name": "competing_readings", "k": 3, "hidden": 6, "cells": 9},
    "competing-not": {"name": "competing_readings", "k": 3, "hidden": 6, "competition": False, "head": "mlp"},
    "competing-single": {
        "name": "competing_readings",
        "k": 3,
        "hidden": 6,
        "base": {"name": "single", "pooling": "gpo"},
        "learn_gamma": False,
    },
    "competing-attention": {
        "name": "competing_readings",
        "k": 2,
        "base": {"name": "attention_pooling", "k": 1, "hidden": 14, "attention": 6},
        "keep_global": True,
    },
    "competing-global": {"name": "competing_readings", "k": 2, "base": {"name": "global_feature"}, "keep_global": True},
    "competing-ensemble": {
        "name": "ensemble",
        "members": [{"name": "competing_readings", "k": 2, "hidden": 6}, {"name": "competing_readings", "k": 1}],
    },
    "slots-gamma": {"name": "slots", "gamma": 0.5, **SMALL},
    "transformer-gamma": {"name": "transformer", "gamma": 0.5, **SMALL},
    "pie_net-gamma": {"name": "pie_net", "gamma": 0.5},
    "single": {"name": "single"},
    "classes": {"name": "semantic_sharing", "layers": 2, "heads": 2, "ff": 10},
    "classes-plain": {"name": "semantic_sharing", "layers": 2, "heads": 2, "ff": 10, "scaled": False},
    "common": {"name": "dscmr"},
    "single-adpool": {"name": "single", "pooling": "adpool"},
    "single-kmax": {"name": "single", "pooling": "kmax", "knobs": {"k": 2}},
}
POOLED = {"single", "dscmr"}
"""Predictors without attention of their own."""
ORDERED = {"slots-sine", "transformer-sine", "competing-cells"}

every_predictor = pytest.mark.parametrize("setting", SETTINGS)


def width(setting: str) -> int:
    return DIM if setting.startswith("single") else WIDTH


def build(setting: str) -> sets.SetPredictor:
    torch.manual_seed(0)
    widths = {"dim": DIM} if setting.startswith("single") else {"dim": DIM, "input_dim": WIDTH}
    return shaken(sets.build(**widths, **SETTINGS[setting]))


def inputs(setting: str, **knobs):
    features = batch(width(setting), **knobs)
    generator = torch.Generator().manual_seed(5)
    return features, torch.randn(len(features), DIM, generator=generator, dtype=features.values.dtype)


def test_every_registered_predictor_is_under_this_contract():
    # `global_feature` reads no tokens at all: test_global_feature.py has what holds for it.
    assert {knobs["name"] for knobs in SETTINGS.values()} == set(sets.names()) - {"global_feature"}


@every_predictor
def test_its_class_declares_the_set_size_and_the_need_of_a_global_feature_before_it_is_built(setting):
    part = build(setting)
    assert type(part).set_size(SETTINGS[setting]) == part.k
    assert type(part).adds_global(SETTINGS[setting]) == part.needs_global
    center = part(*inputs(setting)).global_vector
    assert type(part).makes_global_vector(SETTINGS[setting]) == (center is not None)
    if center is not None:
        torch.testing.assert_close(center.norm(dim=-1), torch.ones(len(center)))


@every_predictor
def test_it_returns_unit_vectors_attention_and_residual(setting):
    part = build(setting)
    features, global_feature = inputs(setting)
    found = part(features, global_feature)
    own = part.k - getattr(part, "keep_global", False)  # the global vector itself has no residual
    assert found.vectors.shape == (4, part.k, DIM)
    assert found.residual.shape == (4, own, DIM)
    torch.testing.assert_close(found.vectors.norm(dim=-1), torch.ones(4, part.k))
    if SETTINGS[setting]["name"] not in POOLED:
        assert found.attention.shape == (4, part.k, 9)
        assert found.attention.min() >= 0
        assert found.attention.transpose(1, 2)[~features.mask].abs().sum() == 0


@every_predictor
def test_an_embedding_does_not_change_with_its_batch(setting):
    part = build(setting)
    features, global_feature = inputs(setting)
    together = part(features, global_feature)
    for item in range(len(features)):
        single = part(alone(features, item), global_feature[item : item + 1])
        torch.testing.assert_close(together.vectors[item], single.vectors[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(together.residual[item], single.residual[0], atol=1e-5, rtol=0)
        if single.attention is not None:
            real = together.attention[item][:, features.mask[item]]
            torch.testing.assert_close(real, single.attention[0], atol=1e-5, rtol=0)


@every_predictor
@pytest.mark.parametrize("garbage", [0.0, -1e9, 1e30, float("nan"), float("inf")])
def test_padding_contents_never_matter_nor_receive_gradient(setting, garbage):
    part = build(setting)
    features, global_feature = inputs(setting)
    values = features.values.masked_fill(~features.mask[..., None], garbage).requires_grad_()
    found = part(LocalFeatures(values, features.mask), global_feature)
    assert torch.equal(found.vectors, part(features, global_feature).vectors)
    found.vectors.sum().backward()
    assert values.grad[~features.mask].abs().sum() == 0
    assert values.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in part.parameters())


@every_predictor
def test_the_order_of_tokens_matters_only_with_positions(setting):
    part = build(setting)
    features, global_feature = inputs(setting, lengths=(9,))
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    shuffled = LocalFeatures(features.values[:, order], features.mask)
    difference = (part(shuffled, global_feature).vectors - part(features, global_feature).vectors).abs().max()
    assert difference > 1e-3 if setting in ORDERED else difference < 1e-5


@every_predictor
def test_an_item_of_one_token_works(setting):
    part = build(setting)
    features, global_feature = inputs(setting, lengths=(1,))
    assert part(features, global_feature).vectors.isfinite().all()


@every_predictor
def test_bad_input_is_named(setting):
    part = build(setting)
    features, global_feature = inputs(setting)
    with pytest.raises(PolysemError, match=r"Items \[2\] consist of padding alone"):
        part(LocalFeatures.from_lengths(torch.zeros(3, 4, width(setting)), [1, 2, 0]), global_feature[:3])
    with pytest.raises(PolysemError, match="got 7"):
        part(batch(7), global_feature)
    with pytest.raises(PolysemError, match=r"\(4, 12\).*got \(4, 5\)"):
        part(features, torch.zeros(4, 5))
    if part.needs_global:
        with pytest.raises(PolysemError, match="none was given"):
            part(features)
    else:
        assert part(features).vectors.shape[0] == 4
    features.values[3, 1, 0] = float("nan")
    with pytest.raises(PolysemError, match="item 3, token 1"):
        part(features, global_feature)


@every_predictor
def test_saved_equals_loaded(setting, tmp_path):
    part = build(setting)
    features, global_feature = inputs(setting)
    torch.save(part.state_dict(), tmp_path / "part.pt")
    loaded = sets.build(**json.loads(json.dumps(part.config))).eval()
    loaded.load_state_dict(torch.load(tmp_path / "part.pt", weights_only=True))
    assert torch.equal(loaded(features, global_feature).vectors, part(features, global_feature).vectors)


@every_predictor
@pytest.mark.slow
def test_gradients_are_right(setting):
    part = build(setting).double()
    features, global_feature = inputs(setting, lengths=(2, 1), dtype=torch.float64)

    def predict(values, joined):
        found = part(LocalFeatures(values, features.mask), joined)
        return found.vectors, found.residual

    values = features.zero_padding().values.requires_grad_()
    assert torch.autograd.gradcheck(predict, (values, global_feature.requires_grad_()), eps=1e-6, atol=1e-5)


@every_predictor
@pytest.mark.parametrize("kind", ["zeros", "duplicates"])
def test_gradients_are_finite_where_values_coincide(setting, kind):
    part = build(setting)
    values = torch.zeros(2, 5, width(setting))
    if kind == "duplicates":
        values = torch.randn(1, 1, width(setting)).expand(2, 5, -1).clone()
    values.requires_grad_()
    global_feature = torch.zeros(2, DIM, requires_grad=True)
    found = part(LocalFeatures.from_lengths(values, [5, 3]), global_feature)
    (found.vectors.square().sum() + found.residual.square().sum()).backward()
    assert values.grad.isfinite().all()
    assert global_feature.grad is None or global_feature.grad.isfinite().all()


@every_predictor
def test_what_elements_read_is_shared_out_over_the_tokens(setting):
    part, features = build(setting), batch(width(setting))
    prediction = part(features, torch.randn(len(features), DIM) if part.needs_global else None)
    reading = part.token_shares(prediction)
    if SETTINGS[setting]["name"] in POOLED:
        assert reading is None
        return
    steps = 1 if prediction.attention_steps is None else len(prediction.attention_steps)
    assert reading.shape == (steps, len(features), part.k, features.mask.shape[1])
    torch.testing.assert_close(reading.sum(-1), torch.ones(reading.shape[:-1]), atol=1e-5, rtol=0)
    assert not reading.masked_select(~features.mask[:, None].expand_as(reading[0])).any()


@every_predictor
def test_a_vector_that_is_a_sum_over_tokens_is_that_sum(setting):
    part, features = build(setting), batch(width(setting))
    found = part.as_sum(features)
    if not setting.startswith(("single", "classes")):
        assert found is None
        return
    vectors = torch.nn.functional.normalize(found.terms.sum(1), dim=-1)
    torch.testing.assert_close(vectors, part(features).vectors[:, 0], atol=1e-5, rtol=0)
    torch.testing.assert_close(found.shares.sum(1), torch.ones(len(features)))


@every_predictor
def test_vectors_that_are_sums_over_tokens_are_these_sums(setting):
    """The exact decomposition behind explanations, with padding: rows of a batch of different lengths."""
    part, features = build(setting).eval(), batch(width(setting))
    shared = torch.randn(len(features), DIM) if part.needs_global else None
    found, made = part.as_set_sum(features, shared), part(features, shared)
    if not setting.startswith(("single", "classes", "competing")) or SETTINGS[setting].get("head") == "mlp":
        assert found is None
        return
    torch.testing.assert_close(found.vectors, made.vectors, atol=1e-5, rtol=0)
    centered = found.center(features.mask)
    torch.testing.assert_close(centered.vectors, made.vectors, atol=1e-5, rtol=0)
    for exact in (found, centered):
        for each in exact.parts:
            assert not each.coefficients.masked_select(~features.mask[:, None].expand_as(each.coefficients)).any()
    directions = torch.randn(2, part.dim)
    split = found.project(directions)
    assert split.shape == (len(features), part.k, features.mask.shape[1], 2)
    torch.testing.assert_close(
        split.sum(2) + found.remainder @ directions.t(), made.vectors @ directions.t(), atol=1e-5, rtol=0
    )
