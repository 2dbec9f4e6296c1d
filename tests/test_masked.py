import pytest
import torch

from polysem import masked
from support import batch


def test_sorting_looks_at_real_tokens_only_and_leaves_zeros_behind_them():
    features = batch()
    ranked = masked.sort_descending(features.values, features.mask)
    for item, length in enumerate(features.lengths.tolist()):
        expected = features.values[item, :length].sort(0, descending=True).values
        assert torch.equal(ranked[item, :length], expected)
        assert ranked[item, length:].abs().sum() == 0


def test_masked_softmax_gives_padding_no_weight():
    features = batch()
    weights = masked.softmax(features.values, features.mask[..., None], dim=1)
    assert weights[~features.mask].abs().sum() == 0
    torch.testing.assert_close(weights.sum(1), torch.ones(4, 12))


def test_a_zero_vector_has_no_direction_and_a_finite_gradient():
    x = torch.zeros(2, 3, requires_grad=True)
    masked.unit(x).sum().backward()
    assert masked.unit(x).abs().sum() == 0
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
        fast = masked.sort_descending(values, features.mask)
    torch.set_num_threads(before)
    assert torch.equal(fast, masked.sort_descending(values, features.mask))
    assert torch.equal(values, features.values)  # sorted in place, but not in the caller's place
