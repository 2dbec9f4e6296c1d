import pytest
import torch

from polysem import PolysemError, pooling, sets
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
