import pytest
import torch

from polysem import LocalFeatures, PolysemError, pooling, sets
from support import batch, shaken


@pytest.mark.parametrize("name", pooling.names())
def test_it_is_the_pooling_as_a_set_of_one(name):
    part = shaken(sets.build("single", dim=12, pooling=name))
    features = batch(12)
    found = part(features)
    pooled = part.pooling(features)
    assert found.vectors.shape == (4, 1, 12)
    assert torch.equal(found.residual[:, 0], pooled)
    torch.testing.assert_close(found.vectors[:, 0], torch.nn.functional.normalize(pooled, dim=-1))


def test_knobs_reach_the_pooling():
    part = sets.build("single", dim=12, pooling="kmax", knobs={"k": 7})
    assert part.pooling.config["k"] == 7
    assert sets.build(**part.config).pooling.config == part.pooling.config


def test_an_unknown_pooling_or_knob_is_named():
    with pytest.raises(PolysemError, match="Did you mean 'gpo'"):
        sets.build("single", dim=12, pooling="gpoo")
    with pytest.raises(PolysemError, match="Unknown knob of 'max'"):
        sets.build("single", dim=12, pooling="max", knobs={"k": 7})


def test_the_global_feature_itself_is_the_set():
    part = sets.build("global_feature", dim=6)
    features, summary = batch(4), torch.randn(4, 6, requires_grad=True)
    found = part(features, summary)
    torch.testing.assert_close(found.vectors, torch.nn.functional.normalize(summary, dim=-1)[:, None])
    assert torch.equal(found.residual[:, 0], summary)
    assert found.attention is None
    found.vectors[..., 0].sum().backward()
    assert summary.grad.abs().sum() > 0


def test_tokens_and_padding_do_not_matter_to_the_global_feature():
    part, summary = sets.build("global_feature", dim=6), torch.randn(4, 6)
    features = batch(4)
    other = LocalFeatures(torch.randn_like(features.values), features.mask)
    assert torch.equal(part(features, summary).vectors, part(other, summary).vectors)


def test_gradients_of_the_global_feature_are_those_of_a_finite_difference():
    part, features = sets.build("global_feature", dim=3), batch(4)
    summary = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda g: part(features, g).vectors, summary)


def test_a_missing_global_feature_is_named():
    with pytest.raises(PolysemError, match="none was given"):
        sets.build("global_feature", dim=6)(batch(4))
