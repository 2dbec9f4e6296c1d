"""Similarities against numbers made by their authors' released code."""

import pytest

from polysem import similarity
from support import assert_close, assert_gradient, cases, load_case

OURS = {
    "smooth_chamfer": ("smooth_chamfer", {}),
    "chamfer": ("chamfer", {}),
    "mil_max": ("mil", {}),
    "mp": ("match_probability", {}),
}


@pytest.mark.parametrize("case_name", cases("set_similarity"))
@pytest.mark.parametrize("theirs", OURS)
@pytest.mark.parametrize("budget_mb", [64.0, 1e-4])
def test_dive_scores_and_gradients(case_name, theirs, budget_mb):
    case = load_case(case_name)
    name, knobs = OURS[theirs]
    if name == "smooth_chamfer":
        knobs = {"alpha": case.meta["temperature"]}
    a, b = (case.input[side].clone().requires_grad_() for side in ("img", "txt"))
    scores = similarity.build(name, **knobs).scores(a, b, budget_mb=budget_mb)
    assert_close(scores, case.output[theirs], atol=1e-6)
    (scores * case.input["coef"]).sum().backward()
    if f"{theirs}/img" in case.grad:
        assert_gradient(a.grad, case.grad[f"{theirs}/img"])
        assert_gradient(b.grad, case.grad[f"{theirs}/txt"])
    else:
        assert case_name == "set_similarity_collapsed"  # a maximum over equal elements has no one gradient


@pytest.mark.parametrize(("case_name", "atol"), [(n, 1e-3 if "collapsed" in n else 1e-5) for n in cases("set_sim")])
def test_dive_euclidean_is_minus_our_similarity(case_name, atol):
    case = load_case(case_name)
    part = similarity.build("smooth_chamfer", alpha=case.meta["temperature"], metric="euclidean")
    assert_close(-part.scores(case.input["img"], case.input["txt"]), case.output["smooth_chamfer_euclidean"], atol)


@pytest.mark.parametrize("learnable", [False, True])
def test_pcme_match_probability(learnable):
    case = load_case("pcme_match_probability")
    part = similarity.build("match_probability", form="pcme", scale=1.0, shift=0.0, learnable=learnable)
    part.load_official(case.weight)
    assert_close(part.scores(case.input["img"], case.input["txt"]), case.output["match_probability"], atol=1e-6)
