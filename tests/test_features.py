import numpy as np
import pytest
import torch

from polysem import LocalFeatures, PolysemError
from polysem.errors import InputError
from support import batch


def test_lengths_become_a_mask_of_the_first_tokens():
    features = LocalFeatures.from_lengths(torch.zeros(3, 4, 2), [4, 1, 3])
    assert features.mask.tolist() == [[True] * 4, [True, False, False, False], [True, True, True, False]]
    assert features.lengths.tolist() == [4, 1, 3]
    assert (len(features), features.dim) == (3, 2)


def test_a_list_of_items_is_padded_with_zeros():
    features = LocalFeatures.from_list([torch.ones(2, 3), torch.ones(4, 3)])
    assert features.lengths.tolist() == [2, 4]
    assert features.values[0, 2:].abs().sum() == 0


def test_zero_padding_replaces_what_stood_there_and_keeps_the_rest():
    features = batch()
    clean = features.zero_padding()
    assert clean.values[~features.mask].abs().sum() == 0
    assert torch.equal(clean.values[features.mask], features.values[features.mask])


def test_features_cannot_be_changed():
    with pytest.raises(AttributeError):
        batch().values = torch.zeros(1)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "mask", "says"),
    [
        (torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool), r"\(items, tokens, dim\).*\(2, 3\)"),
        (torch.zeros(2, 3, 4, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool), "int64"),
        (torch.zeros(2, 3, 4), torch.ones(2, 4, dtype=torch.bool), r"\(2, 3\).*\(2, 4\)"),
        (torch.zeros(2, 3, 4), torch.ones(2, 3), "float32.*from_lengths"),
        (np.zeros((2, 3, 4), dtype=np.float32), torch.ones(2, 3, dtype=torch.bool), r"\(2, 3, 4\).*from_numpy"),
    ],
)
def test_wrong_shapes_and_types_are_named(values, mask, says):
    with pytest.raises(InputError, match=says):
        LocalFeatures(values, mask)


@pytest.mark.parametrize("lengths", [[1, 5], [-1, 2], [1.0, 2.0]])
def test_impossible_lengths_are_refused(lengths):
    with pytest.raises(InputError, match="whole numbers from 0 to 4"):
        LocalFeatures.from_lengths(torch.zeros(2, 4, 3), lengths)


def test_too_few_lengths_are_refused():
    with pytest.raises(InputError, match="Expected 2 lengths"):
        LocalFeatures.from_lengths(torch.zeros(2, 4, 3), [1])


def test_items_of_different_widths_are_refused():
    with pytest.raises(InputError, match="one common dim"):
        LocalFeatures.from_list([torch.ones(2, 3), torch.ones(2, 4)])
    with pytest.raises(InputError, match="empty list"):
        LocalFeatures.from_list([])


def test_check_names_the_items_that_are_all_padding():
    with pytest.raises(PolysemError, match=r"Items \[1, 3\] consist of padding alone"):
        LocalFeatures.from_lengths(torch.zeros(4, 2, 3), [1, 0, 2, 0]).check()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_check_names_the_first_token_that_is_not_finite(bad):
    features = batch()
    features.values[2, 0, 5] = bad
    with pytest.raises(InputError, match="item 2, token 0"):
        features.check()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_check_does_not_mind_what_padding_holds(bad):
    features = batch()
    filled = LocalFeatures(features.values.masked_fill(~features.mask[..., None], bad), features.mask)
    filled.check()
    assert filled.zero_padding().values.isfinite().all()


def test_large_half_precision_features_are_finite_though_their_sum_is_not():
    features = LocalFeatures.from_lengths(torch.full((1, 8, 8), 6e4, dtype=torch.float16), [8])
    features.check()
    assert not features.values.sum().isfinite()


def test_check_refuses_another_width_and_an_empty_batch():
    with pytest.raises(InputError, match="width 5, got 12"):
        batch().check(dim=5)
    with pytest.raises(InputError, match="without items"):
        LocalFeatures(torch.zeros(0, 3, 2), torch.zeros(0, 3, dtype=torch.bool)).check()


def test_a_summary_stays_with_its_features_and_has_one_row_per_item():
    features = batch()
    summary = torch.randn(4, 7)
    kept = LocalFeatures(features.values, features.mask, summary).zero_padding()
    assert kept.summary is summary
    with pytest.raises(InputError, match=r"\(4, dim\).*\(3, 7\)"):
        LocalFeatures(features.values, features.mask, summary[:3])


def test_the_former_name_of_zero_padding_works_and_says_so():
    features = LocalFeatures.from_lengths(torch.ones(1, 2, 3), [1])
    with pytest.warns(DeprecationWarning, match="zero_padded is now zero_padding"):
        assert torch.equal(features.zero_padded().values, features.zero_padding().values)
