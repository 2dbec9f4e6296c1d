"""Embedding in groups of like length gives what embedding together gives."""

from __future__ import annotations

import pytest
import torch

from polysem import LocalFeatures, models
from polysem.models import tower as towers

SETS = {
    "gpo": {"name": "single", "pooling": "gpo"},
    "slots": {"name": "slots", "head_dim": 4, "position": "sine"},
    "pie_net": {"name": "pie_net"},
    "attention_pooling": {"name": "attention_pooling", "hidden": 6, "attention": 5},
    "classes": {"name": "classes", "layers": 1, "heads": 2, "ff": 6, "labels": [f"label {n}" for n in range(8)]},
}


def features(items: int = 160, longest: int = 40) -> LocalFeatures:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 9, (items,), generator=generator)
    lengths[7] = longest
    found = LocalFeatures.from_lengths(torch.randn(items, longest, 6, generator=generator), lengths)
    holes = torch.rand(found.mask.shape, generator=generator) > 0.2
    holes[:, 0] = True
    return LocalFeatures(found.values, found.mask & holes)


@pytest.mark.parametrize("sets", SETS)
def test_groups_equal_one_piece_with_gradients_too(sets, monkeypatch):
    torch.manual_seed(0)
    tower = models.build(
        dim=8,
        image={"encoder": {"name": "region", "input_dim": 6}, "pool": {"name": "max"}, "sets": SETS[sets]},
        text={"encoder": {"name": "bigru", "vocab_size": 9}, "sets": SETS[sets]},
        similarity={"name": "mil"},
    ).image.double()
    monkeypatch.setattr(type(tower.sets), "works_on_tokens", True)  # slots do not: they would not be cut
    given = features()
    given = LocalFeatures(given.values.double(), given.mask)
    assert len(towers.group_by_length(given.mask)) == 4

    def run():
        tower.zero_grad()
        found = tower(given)
        (found.vectors.sin().sum() + found.residual.sum()).backward()
        return found, [p.grad.clone() for p in tower.parameters() if p.grad is not None]

    cut, cut_gradients = run()
    monkeypatch.setattr(towers, "group_by_length", lambda mask: [])
    whole, whole_gradients = run()
    if whole.logits is not None:
        torch.testing.assert_close(cut.logits, whole.logits)
        torch.testing.assert_close(cut.states[given.mask], whole.states[given.mask])
    for name in ("vectors", "attention", "residual", "attention_steps"):
        one, other = getattr(cut, name), getattr(whole, name)
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)
    for one, other in zip(cut_gradients, whole_gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_rows_of_like_length_stay_together():
    assert towers.group_by_length(torch.ones(200, 30, dtype=torch.bool)) == []


def test_small_batches_stay_together():
    assert towers.group_by_length(features(40).mask) == []


def test_every_row_is_in_one_group_that_reaches_its_last_token():
    mask = features().mask
    found = towers.group_by_length(mask)
    assert sorted(torch.cat([rows for rows, _ in found]).tolist()) == list(range(len(mask)))
    for rows, length in found:
        assert not mask[rows][:, length:].any()
        assert mask[rows][:, length - 1].any()


def test_a_part_that_reads_padding_is_given_all_of_it():
    tower = models.build(
        dim=8,
        image={"encoder": {"name": "region", "input_dim": 6}, "sets": {"name": "single", "pooling": "gpo"}},
        text={"encoder": {"name": "bigru", "vocab_size": 9}, "sets": {"name": "slots", "variant": "official"}},
        similarity={"name": "mil"},
    )
    assert tower.text.reads_padding
    assert not tower.image.reads_padding
