import pytest
import torch

from polysem import PolysemError, similarity
from support import unit


def test_it_is_the_cosine_whatever_the_lengths():
    a, b = torch.randn(3, 1, 5) * 7, torch.randn(4, 1, 5) * 0.1
    expected = torch.nn.functional.cosine_similarity(a[:, None, 0], b[None, :, 0], dim=-1)
    torch.testing.assert_close(similarity.build("cosine").scores(a, b), expected)


def test_on_unit_vectors_it_equals_the_others():
    a, b = unit(6, 1, 8), unit(9, 1, 8, seed=1)
    for name in ("mil", "chamfer", "smooth_chamfer"):
        torch.testing.assert_close(similarity.build("cosine").scores(a, b), similarity.build(name).scores(a, b))


def test_its_only_contribution_is_the_score():
    part, a, b = similarity.build("cosine"), unit(3, 1, 4), unit(3, 1, 4, seed=1)
    torch.testing.assert_close(part.contributions(a, b)[:, 0, 0], part.scores(a, b).diagonal())


def test_blocks_equal_one_piece_with_gradients_too():
    a, b = (torch.randn(n, 1, 16, dtype=torch.float64, requires_grad=True) for n in (40, 50))
    part = similarity.build("cosine")
    whole = torch.autograd.grad(part.scores(a, b).square().sum(), (a, b))
    blocks = torch.autograd.grad(part.scores(a, b, budget_mb=0.01).square().sum(), (a, b))
    for one, other in zip(whole, blocks, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_are_those_of_a_finite_difference():
    a, b = (torch.randn(n, 1, 3, dtype=torch.float64, requires_grad=True) for n in (2, 3))
    assert torch.autograd.gradcheck(similarity.build("cosine").scores, (a, b))


def test_sets_are_refused_with_what_to_choose():
    with pytest.raises(PolysemError, match=r"sets of 2 and 1.*smooth_chamfer"):
        similarity.build("cosine").scores(unit(3, 2, 4), unit(3, 1, 4))
