"""Several predictors side by side."""

import pytest
import torch

from polysem import sets
from polysem.errors import PolysemError
from support import batch, shaken

MEMBERS = [
    {"name": "attention_pooling", "k": 2, "hidden": 8, "attention": 4},
    {"name": "pie_net", "k": 1},
    {"name": "attention_pooling", "k": 1, "hidden": 6, "attention": 4},
]


def ensemble(members=MEMBERS) -> sets.Ensemble:
    torch.manual_seed(0)
    return shaken(sets.build("ensemble", dim=12, input_dim=10, members=members))


def test_its_set_is_the_sets_of_its_members_one_after_the_other():
    part, features = ensemble(), batch(10)
    shared = torch.randn(len(features), 12, dtype=features.values.dtype)
    found = part(features, shared)
    apart = [member(features, shared) for member in part.members]
    assert part.k == found.vectors.shape[1] == 4
    assert part.needs_global  # PIE-Net does
    for name in ("vectors", "attention", "residual"):
        torch.testing.assert_close(getattr(found, name), torch.cat([getattr(each, name) for each in apart], 1))


def test_members_have_weights_of_their_own():
    part = ensemble([MEMBERS[0], MEMBERS[0]])
    first, second = part.members
    assert not torch.equal(first.fc.weight, second.fc.weight)
    assert not part.needs_global


def test_a_member_without_attention_leaves_the_chorus_without():
    part, features = ensemble([MEMBERS[0], {"name": "dscmr"}]), batch(10)
    assert part(features).attention is None


def test_it_is_built_again_from_its_config():
    part, features = ensemble(MEMBERS[::2]), batch(10)
    again = sets.build(**part.config)
    again.load_state_dict(part.state_dict())
    torch.testing.assert_close(again.to(features.values.dtype)(features).vectors, part(features).vectors)


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([], "at least one"),
        ([{"name": "reading"}], "attention_pooling"),
        ([{"k": 2}], "name"),
        ([{"name": "attention_pooling", "j": 1}], "j"),
    ],
)
def test_members_that_cannot_be(members, said):
    with pytest.raises(PolysemError, match=said):
        sets.build("ensemble", dim=12, members=members)
