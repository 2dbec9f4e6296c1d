"""Objectives and regularisers against numbers made by their authors' released code."""

import pytest
import torch

from polysem import objectives, similarity
from support import assert_gradient, cases, load_case


def eye(n, texts_per_image=1):
    return torch.eye(n, dtype=torch.bool).repeat_interleave(texts_per_image, dim=1)


@pytest.mark.parametrize("name", cases("triplet"))
@pytest.mark.parametrize(("mode", "mining"), [("sum", "all"), ("hard", "hardest")])
def test_vse_triplets(name, mode, mining):
    case = load_case(name)
    a, b = (case.input[side].clone().requires_grad_() for side in ("img", "txt"))
    part = objectives.build("triplet", margin=case.meta["margin"], mining=mining, reduction="sum")
    loss = part(a @ b.t(), eye(len(a)))
    assert loss.total.item() == pytest.approx(float(case.output[f"loss_{mode}"]), rel=1e-5)
    loss.total.backward()
    assert_gradient(a.grad, case.grad[f"{mode}/img"])
    assert_gradient(b.grad, case.grad[f"{mode}/txt"])


@pytest.mark.parametrize("name", cases("adopt"))
def test_adopt(name):
    case = load_case(name)
    a, b = (case.input[side].clone().requires_grad_() for side in ("img", "txt"))
    loss = objectives.build("adopt", variant="official")(a @ b.t(), eye(len(a)))
    assert [loss.info["k_t2i"], loss.info["k_i2t"]] == case.output["num_negatives"].tolist()
    assert loss.total.item() == pytest.approx(float(case.output["loss"]), rel=1e-5)
    assert loss.parts["i2t"].item() == pytest.approx(float(case.output["loss_i2t"]), rel=1e-5)
    loss.total.backward()
    assert_gradient(a.grad, case.grad["img"])
    assert_gradient(b.grad, case.grad["txt"])


@pytest.mark.parametrize("name", cases("dive_loss"))
@pytest.mark.parametrize("double", [False, True])
def test_dive_loss(name, double):
    case = load_case(name)
    meta, prefix, atol = case.meta, "double_" if double else "", 1e-9 if double else 2e-6
    given = {
        key: tensor.detach().to(torch.float64 if double else torch.float32, copy=True).requires_grad_()
        for key, tensor in case.input.items()
    }
    alpha = {"alpha": meta["temperature"]} if meta["similarity"] == "smooth_chamfer" else {}
    scores = similarity.build(meta["similarity"], **alpha).scores(given["img"], given["txt"])
    mining = "hardest" if meta["max_violation"] else "all"
    triplet = objectives.build("triplet", margin=meta["margin"], mining=mining, reduction="mean")
    ranking = triplet(scores, eye(meta["num_images"], meta["txt_per_img"]))
    mmd = objectives.build("mmd")(given["img"], given["txt"])
    spread = objectives.build("diversity")(given["img_residual"], given["txt_residual"])
    total = ranking.total + meta["mmd_weight"] * mmd.total + meta["unif_weight"] * spread.total
    for ours, theirs, tolerance in (
        (ranking.parts["i2t"], "i2t_loss", atol),
        (ranking.parts["t2i"], "t2i_loss", atol),
        (mmd.total, "mmd_loss", atol if double else 1e-5),
        (spread.total, "unif_loss", atol),
        (total, "total", atol),
    ):
        assert ours.item() == pytest.approx(float(case.output[prefix + theirs]), abs=tolerance)
    total.backward()
    for key, tensor in given.items():
        assert_gradient(tensor.grad, case.grad[key])
