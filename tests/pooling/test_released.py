"""Poolings against numbers made by their authors' released code (GPO has a file of its own)."""

import pytest
import torch

from polysem import LocalFeatures, PolysemError, pooling
from polysem.pooling.softmax_pooling import gate, pool_by_softmax
from support import assert_close, assert_gradient, cases, load_case


@pytest.mark.parametrize("name", cases("adpool"))
def test_adpool_official(name):
    case = load_case(name)
    features = case.features
    part = pooling.build("adpool", dim=features.dim, variant="official").load_official(case.weight)
    pooled = part(features)
    assert_close(pooled, case.output["pooled"], atol=1e-5)
    clean = features.zero_padding()
    levels = part.levels(clean.values, clean.mask)
    assert_close(part.level_weights(levels), case.output["fusion_weights"], atol=1e-5)
    (pooled * case.input["coef"]).sum().backward()
    assert_gradient(features.values.grad, case.grad["features"])
    for parameter, tensor in part.named_parameters():
        assert_gradient(tensor.grad, case.grad[f"weight/{parameter}"])


@pytest.mark.parametrize("name", cases("adpool"))
def test_adpool_corrected_equals_the_released_code_without_padding(name):
    case = load_case(name)
    part = pooling.build("adpool", dim=case.features.dim).load_official(case.weight)
    assert_close(part(case.features), case.output["pooled_alone"], atol=1e-5)


@pytest.mark.parametrize("name", cases("fspool"))
@pytest.mark.parametrize("variant", ["paper", "official"])
def test_fspool(name, variant):
    case = load_case(name)
    features = case.features
    part = pooling.build("fspool", dim=features.dim, pieces=case.meta["n_pieces"], variant=variant)
    pooled = part.load_official(case.weight)(features)
    assert_close(pooled, case.output["pooled" if variant == "official" else "pooled_alone"], atol=2e-5)
    (pooled * case.input["coef"]).sum().backward()
    assert_gradient(features.values.grad, case.grad["features"])
    assert_gradient(part.knots.grad, case.grad["weight/weight"])


def test_the_released_fspool_reads_one_padded_slot_of_a_single_token():
    knots = torch.randn(1, 3)
    released = pooling.build("fspool", dim=1, pieces=2, variant="official").load_official({"weight": knots})
    correct = pooling.build("fspool", dim=1, pieces=2).load_official({"weight": knots})
    features = LocalFeatures.from_lengths(torch.tensor([[[2.0], [5.0], [7.0]]]), [1])
    torch.testing.assert_close(correct(features)[0, 0], knots[0, 0] * 2)
    torch.testing.assert_close(released(features)[0, 0], knots[0, 0] * 5 + knots[0, 2] * 2)


def test_lip_gate_and_pooling():
    case = load_case("lip_set")
    x, raw = case.input["features"], case.input["raw_logit"]
    assert_close(gate(raw, 12.0), case.output["logit"], atol=1e-5)
    mask = torch.ones(x.shape[:2], dtype=torch.bool)
    assert_close(pool_by_softmax(x, gate(raw, 12.0), mask), case.output["pooled"], atol=1e-5)


def test_lip_over_image_windows():
    """The released 2-D layer is LIP over 3x3 windows: each window a set, its share of the border padding."""
    case = load_case("lip_simplified_2d")
    x, weight = case.input["features"], case.weight
    raw = torch.nn.functional.conv2d(x, weight["logit.conv.weight"], padding=1)
    raw = torch.nn.functional.instance_norm(raw, weight=weight["logit.bn.weight"], bias=weight["logit.bn.bias"])

    def windows(image):
        batch, channels = image.shape[:2]
        cut = torch.nn.functional.unfold(image, 3, padding=1, stride=2)
        return cut.view(batch, channels, 9, -1).permute(0, 3, 2, 1).flatten(0, 1)

    mask = windows(torch.ones_like(x))[..., 0] > 0
    pooled = pool_by_softmax(windows(x), windows(gate(raw, 12.0)), mask)
    assert not mask.all()
    assert_close(pooled.view(2, 16, 6).transpose(1, 2).reshape(2, 6, 4, 4), case.output["pooled"], atol=1e-5)


def test_lip_takes_one_by_one_kernels_and_names_larger_ones():
    part = pooling.build("lip", dim=6)
    state = load_case("lip_simplified_2d").weight
    with pytest.raises(PolysemError, match=r"\(6, 6, 3, 3\)"):
        part.load_official(state)
    state["logit.conv.weight"] = state["logit.conv.weight"][:, :, 1:2, 1:2]
    part.load_official(state)
    assert torch.equal(part.logit.weight, state["logit.conv.weight"][:, :, 0, 0])
