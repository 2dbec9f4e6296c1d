"""t-SNE against its definition, and against what it is for."""

from __future__ import annotations

import pytest
import torch

from polysem.inspection.map.tsne import _attraction, _Repulsion, affinities, find_neighbours, run_tsne


def test_the_nearest_are_those_of_a_full_sort() -> None:
    points = torch.randn(60, 5)
    places, squares = find_neighbours(points, 7)
    exact = torch.cdist(points, points).square().fill_diagonal_(float("inf")).sort(1)
    assert places.sort(1).values.equal(exact.indices[:, :7].sort(1).values)
    torch.testing.assert_close(squares.sort(1).values, exact.values[:, :7], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_affinities_have_the_perplexity_that_was_asked_for(scale: float) -> None:
    _, squares = find_neighbours(scale * torch.randn(50, 4), 30)
    weights = affinities(squares, 10.0).double()
    torch.testing.assert_close(weights.sum(1), torch.ones(50, dtype=torch.float64))
    perplexity = (-(weights * weights.log()).sum(1)).exp()
    torch.testing.assert_close(perplexity, torch.full((50,), 10.0, dtype=torch.float64), atol=0.01, rtol=0)


@pytest.mark.parametrize("width", [1e-4, 0.1, 1.0, 5.0, 15.0])
def test_the_field_is_the_sum_over_all_pairs(width: float) -> None:
    layout = width * torch.randn(300, 2)
    difference = layout[:, None] - layout[None]
    q = (1 / (1 + difference.square().sum(-1))).fill_diagonal_(0)
    exact = (q.square()[..., None] * difference).sum(1) / q.sum()
    assert (_Repulsion()(layout) - exact).norm() < 0.1 * exact.norm()


def test_a_few_points_far_apart_are_not_flung_away() -> None:
    """All that is left of Z then is small, and must not drown in what each point adds by itself."""
    layout = 10 * torch.randn(8, 2)
    difference = layout[:, None] - layout[None]
    q = (1 / (1 + difference.square().sum(-1))).fill_diagonal_(0)
    exact = (q.square()[..., None] * difference).sum(1) / q.sum()
    assert (_Repulsion()(layout) - exact).norm() < 0.3 * exact.norm()


def test_attraction_is_the_sum_over_symmetric_neighbours() -> None:
    layout = torch.randn(30, 2)
    places, squares = find_neighbours(torch.randn(30, 3), 6)
    weights = affinities(squares, 3.0) / 30
    p = torch.zeros(30, 30).scatter_(1, places, weights)
    p = (p + p.t()) / 2
    exact = torch.zeros(30, 2)
    for i in range(30):
        for j in range(30):
            apart = layout[i] - layout[j]
            exact[i] += p[i, j] / (1 + apart.square().sum()) * apart
    torch.testing.assert_close(_attraction(layout, places, weights), exact, atol=1e-6, rtol=1e-4)


@pytest.mark.slow
def test_neighbours_stay_neighbours() -> None:
    from sklearn.manifold import trustworthiness

    centres = 4 * torch.randn(5, 20)
    points = centres.repeat_interleave(40, 0) + torch.randn(200, 20)
    seen = list[tuple[str, int, int]]()
    found = run_tsne(points, start=points[:, :2], iterations=300, progress=lambda *step: seen.append(step))
    assert trustworthiness(points.numpy(), found.numpy(), n_neighbors=8) > 0.9
    assert trustworthiness(points.numpy(), points[:, :2].numpy(), n_neighbors=8) < 0.85  # what it began with
    own = torch.arange(200) // 40
    near, _ = find_neighbours(found, 5)
    assert (own[near] == own[:, None]).float().mean() > 0.98
    assert seen[-1] == ("t-SNE", 300, 300)
    assert found.equal(run_tsne(points, start=points[:, :2], iterations=300))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_few_points_have_a_place_too(count: int) -> None:
    found = run_tsne(torch.randn(count, 6), start=torch.randn(count, 2), iterations=20)
    assert found.shape == (count, 2)
    assert found.isfinite().all()
