import pytest
import torch

from polysem import LocalFeatures, PolysemError, sets
from support import batch


def test_the_global_feature_itself_is_the_set():
    part = sets.build("global_feature", dim=6)
    features, summary = batch(4), torch.randn(4, 6, requires_grad=True)
    found = part(features, summary)
    torch.testing.assert_close(found.vectors, torch.nn.functional.normalize(summary, dim=-1)[:, None])
    assert torch.equal(found.residual[:, 0], summary)
    assert found.attention is None
    found.vectors[..., 0].sum().backward()
    assert summary.grad.abs().sum() > 0


def test_tokens_and_padding_do_not_matter():
    part, summary = sets.build("global_feature", dim=6), torch.randn(4, 6)
    features = batch(4)
    other = LocalFeatures(torch.randn_like(features.values), features.mask)
    assert torch.equal(part(features, summary).vectors, part(other, summary).vectors)


def test_gradients_are_those_of_a_finite_difference():
    part, features = sets.build("global_feature", dim=3), batch(4)
    summary = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda g: part(features, g).vectors, summary)


def test_without_a_global_feature_it_says_so():
    with pytest.raises(PolysemError, match="none was given"):
        sets.build("global_feature", dim=6)(batch(4))
