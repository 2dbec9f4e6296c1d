import pytest
import torch

from polysem import masked_ops
from support import batch


def test_sorting_looks_at_real_tokens_only_and_leaves_zeros_behind_them():
    features = batch()
    ranked = masked_ops.sort_descending(features.values, features.mask)
    for item, length in enumerate(features.lengths.tolist()):
        expected = features.values[item, :length].sort(0, descending=True).values
        assert torch.equal(ranked[item, :length], expected)
        assert ranked[item, length:].abs().sum() == 0


def test_masked_softmax_gives_padding_no_weight():
    features = batch()
    weights = masked_ops.softmax(features.values, features.mask[..., None], dim=1)
    assert weights[~features.mask].abs().sum() == 0
    torch.testing.assert_close(weights.sum(1), torch.ones(4, 12))


def test_a_zero_vector_has_no_direction_and_a_finite_gradient():
    x = torch.zeros(2, 3, requires_grad=True)
    masked_ops.normalise(x).sum().backward()
    assert masked_ops.normalise(x).abs().sum() == 0
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert x.grad.abs().max() <= 1e6


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("lengths", [(9, 4, 1, 6), (1,), (5, 5, 5, 5, 5)])
def test_sorting_without_gradients_equals_sorting_with_them(lengths, count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    features = batch(lengths=lengths)
    values = features.values.clone().requires_grad_()
    with torch.no_grad():
        fast = masked_ops.sort_descending(values, features.mask)
    torch.set_num_threads(before)
    assert torch.equal(fast, masked_ops.sort_descending(values, features.mask))
    assert torch.equal(values, features.values)  # sorted in place, but not in the caller's place


def sorted_by_torch(x, mask, sentinel):
    """What `sort_descending` stands for, in torch's own words."""
    columns = x.masked_fill(~mask[..., None], sentinel).sort(dim=1, descending=True, stable=True).values
    return columns.masked_fill(~masked_ops.ranks(mask)[..., None], 0.0)


@pytest.fixture(params=[1, 2])
def threads_of_torch(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads_of_torch")
@pytest.mark.parametrize("sentinel", [float("-inf"), -1e4, -0.1])
@pytest.mark.parametrize("shape", [(4, 9, 12), (40, 49, 64), (3, 1, 5), (2, 300, 3)])
def test_sorting_with_a_gradient_equals_torch(shape, sentinel):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator) * 10.0 ** torch.randint(-30, 30, shape, generator=generator)
    mask = torch.rand(shape[:2], generator=generator) > 0.3
    mask[:, 0] = True
    upstream = torch.randn(shape, generator=generator)
    ways = []
    for sort in (masked_ops.sort_descending, sorted_by_torch):
        given = x.clone().requires_grad_()
        ranked = sort(given, mask, sentinel)
        ranked.backward(upstream)
        ways.append((ranked.detach(), given.grad))
    assert torch.equal(ways[0][0], ways[1][0])
    assert torch.equal(ways[0][1], ways[1][1])


def test_tied_values_pass_the_gradient_to_a_permutation_of_them():
    x = torch.tensor([2.0, -1.0, 2.0, 0.0, -1.0, -0.0, 2.0])[None, :, None].requires_grad_()
    ranked = masked_ops.sort_descending(x, torch.ones(1, 7, dtype=torch.bool))
    upstream = torch.arange(1.0, 8.0)
    ranked.backward(upstream[None, :, None])
    assert ranked.flatten().tolist() == [2, 2, 2, 0, 0, -1, -1]
    gradient = x.grad.flatten()
    for value, given in ((2.0, [1, 2, 3]), (0.0, [4, 5]), (-1.0, [6, 7])):
        assert sorted(gradient[x.flatten() == value].tolist()) == given


def test_infinite_and_tiny_values_sort_like_others():
    x = torch.tensor([0.0, float("inf"), 1e-45, -float("inf"), -1e-45, 3e38, -3e38, 1.0])
    mask = torch.ones(1, 8, dtype=torch.bool)
    ranked = masked_ops.sort_descending(x[None, :, None].requires_grad_(), mask).flatten()
    assert torch.equal(ranked, x.sort(descending=True).values)


def test_sorting_with_a_gradient_leaves_its_input_alone():
    features = batch()
    values = features.values.clone().requires_grad_()
    masked_ops.sort_descending(values, features.mask)
    assert torch.equal(values, features.values)
