import math

import pytest
import torch

from polysem import similarity
from support import unit


def test_it_becomes_chamfer_as_alpha_grows():
    a, b = unit(4, 3, 8), unit(5, 4, 8, seed=1)
    chamfer = similarity.build("chamfer").scores(a, b)
    gaps = [
        float((similarity.build("smooth_chamfer", alpha=alpha).scores(a, b) - chamfer).abs().max())
        for alpha in (1.0, 16.0, 100.0, 1e3, 1e5)
    ]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-4


@pytest.mark.parametrize("name", ["smooth_chamfer", "chamfer", "mil"])
def test_sets_of_one_score_their_cosine(name):
    a, b = unit(4, 1, 8), unit(5, 1, 8, seed=1)
    torch.testing.assert_close(similarity.build(name).scores(a, b), a[:, 0] @ b[:, 0].t())


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("alpha", [1.0, 16.0, 64.0])
def test_collapsed_identical_sets_score_one_plus_log_k_over_alpha(k, alpha):
    x = unit(1, 1, 8).expand(1, k, 8)
    score = similarity.build("smooth_chamfer", alpha=alpha).scores(x, x)
    assert float(score) == pytest.approx(1 + math.log(k) / alpha, abs=1e-6)


def test_the_mean_of_each_set_gives_a_lower_bound():
    """Jensen: what makes set means good candidates for search."""
    a, b = unit(20, 4, 8), unit(30, 4, 8, seed=1)
    bound = a.mean(1) @ b.mean(1).t() + math.log(4) / 16
    assert (similarity.build("smooth_chamfer").scores(a, b) >= bound - 1e-6).all()


@pytest.mark.parametrize("alpha", [16.0, 39.0, 41.0, 500.0])
def test_the_fast_path_equals_the_stable_one(alpha):
    part = similarity.build("smooth_chamfer", alpha=alpha)
    a, b = unit(6, 4, 8), unit(9, 4, 8, seed=1)
    c = torch.einsum("ikd,tld->iklt", a, b)
    torch.testing.assert_close(part.scores(a, b), part.reduce(c), atol=1e-6, rtol=0)


def test_vectors_that_are_not_unit_do_not_overflow():
    part = similarity.build("smooth_chamfer")
    a = 100 * unit(2, 3, 8)
    scores = part.scores(a, a)
    assert scores.isfinite().all()
    exact = part.scores(a.double(), a.double())
    torch.testing.assert_close(scores.double(), exact, rtol=1e-5, atol=0)


def test_peak_memory_follows_the_budget():
    """Every tensor that the scoring makes, apart from its result, fits the budget."""
    part, budget_mb = similarity.build("smooth_chamfer"), 0.5
    a, b = unit(200, 4, 16), unit(400, 4, 16, seed=1)
    sizes: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                sizes.append(out.numel() * out.element_size())
            return out

    with torch.no_grad(), Watch():
        part.scores(a, b, budget_mb=budget_mb)
    result = 200 * 400 * 4
    assert max(size for size in sizes if size != result) <= budget_mb * 2**20 / 3


@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 0.5])
def test_a_small_alpha_loses_no_digits_for_sets_of_one(alpha):
    a, b = unit(4, 1, 8), unit(5, 1, 8, seed=1)
    scores = similarity.build("smooth_chamfer", alpha=alpha).scores(a, b)
    torch.testing.assert_close(scores, a[:, 0] @ b[:, 0].t(), atol=1e-6, rtol=0)
