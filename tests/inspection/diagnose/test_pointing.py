"""The pointing game, with attention that is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from inspection import synthetic_galleries as galleries
from polysem.data.collection import Box, Collection
from polysem.inspection.attention import Attention
from polysem.inspection.diagnose import diagnose_gallery
from polysem.inspection.diagnose import pointing as game
from polysem.inspection.diagnose.report import render_report
from polysem.inspection.gallery import EmbeddedGallery
from polysem.inspection.token_boxes import locate_regions

GRID = [[x, y, x + 10.0, y + 10.0] for y in (0.0, 10.0, 20.0) for x in (0.0, 10.0, 20.0)]
STEPS = 2


def boxed(count: int = 60) -> EmbeddedGallery:
    """A dog or cat somewhere, each in a cell of a 3 x 3 grid; captions name one of the two."""
    rng = np.random.default_rng(0)
    items = []
    for number, item in enumerate(galleries.make_items(count, captions=2)):
        one, other = rng.choice(9, 2, replace=False).tolist()
        boxes = (Box("dog", *GRID[one]), Box("cat", *GRID[other]))
        items.append(replace(item, boxes=boxes, captions=(f"a dog {number}", f"two cats {number}")))
    gallery = galleries.make_diverse(count, noise=0.0)
    return replace(gallery, items=Collection("toy", "features", items))


def looking(monkeypatch: pytest.MonkeyPatch, gallery: EmbeddedGallery, at: str) -> game.PointingGame:
    rng = np.random.default_rng(1)

    def attentions(_: EmbeddedGallery, places: list[int], __: object) -> Iterator[Attention]:
        captions = game._CaptionIndex(gallery)
        for place in places:
            weights = torch.zeros(STEPS, 4, 9)
            for slot, caption in enumerate(captions.find_nearest(place, own_only=False)):
                (name,) = captions.names[caption]
                box = next(box for box in gallery.items[place].boxes if box.name == name)
                cell = GRID.index([box.x0, box.y0, box.x1, box.y1]) if at == "named" else int(rng.integers(9))
                weights[0, slot, int(rng.integers(9))] = 1.0
                weights[1, slot, cell if at != "corner" else 0] = 1.0
            yield Attention(gallery.embeddings.images[place], weights, "attention")

    monkeypatch.setattr(game, "iterate_attentions", attentions)
    monkeypatch.setattr(game, "locate_item_tokens", lambda *_: locate_regions(GRID, (30, 30)))
    monkeypatch.setattr(game, "ImageEncoder", object)
    found = game.play_pointing_game(gallery)
    assert not isinstance(found, str)
    return found


def test_who_always_looks_at_what_is_named_hits_always(monkeypatch: pytest.MonkeyPatch) -> None:
    found = looking(monkeypatch, boxed(), "named")
    assert found.accuracy.value == 1.0
    assert found.covered == 1.0
    assert found.accuracy.trials == 240
    assert found.chance == pytest.approx(1 / 9)
    assert found.above.low > 0.7
    assert found.by_slot[-1][0].value == 1.0
    assert found.by_slot[0][0].value < 0.5  # the first iteration looked anywhere


def test_who_looks_anywhere_hits_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    found = looking(monkeypatch, boxed(), "anywhere")
    assert found.accuracy.low < 1 / 9 + 0.03
    assert found.above.low < 0.03
    assert found.accuracy.low <= found.accuracy.value <= found.accuracy.high


def test_a_fixed_way_of_looking_is_no_merit(monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = boxed()
    # All dogs and cats in the first cell: to look there always is a habit.
    items = [replace(item, boxes=tuple(Box(box.name, *GRID[0]) for box in item.boxes)) for item in gallery.items]
    found = looking(monkeypatch, replace(gallery, items=Collection("toy", "features", items)), "corner")
    assert found.accuracy.value == 1.0
    assert found.habit == pytest.approx(1.0)
    assert found.above.value == pytest.approx(0.0)


def test_the_report_shows_the_game(monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = boxed()
    found = looking(monkeypatch, gallery, "named")
    monkeypatch.undo()
    page = render_report(replace(diagnose_gallery(gallery), pointing=found))
    assert "Pointing game: does attention land on what is named?" in page
    own = found.own
    assert f"{own.value:.1%} ({own.low:.1%} to {own.high:.1%}), at random {found.own_chance:.1%}" in page
    assert "100.0% (100.0% to 100.0%)" in page
    assert "element 4 ends at 100%" in page


def test_without_boxes_or_places_it_says_why() -> None:
    assert game.play_pointing_game(galleries.make_diverse()) == "No boxes are known of these pictures."
    assert "not known" in str(game.play_pointing_game(galleries.make_diverse(boxes=True)))


def test_who_weighs_all_alike_does_not_play(monkeypatch: pytest.MonkeyPatch) -> None:
    """The strongest of equal weights would be the first: a corner of the picture."""
    gallery = boxed()

    def attentions(_: EmbeddedGallery, places: list[int], __: object) -> Iterator[Attention]:
        for place in places:
            yield Attention(gallery.embeddings.images[place], torch.full((1, 4, 9), 1 / 9), "pooling")

    monkeypatch.setattr(game, "iterate_attentions", attentions)
    monkeypatch.setattr(game, "locate_item_tokens", lambda *_: locate_regions(GRID, (30, 30)))
    monkeypatch.setattr(game, "ImageEncoder", object)
    assert "weighs all tokens of a picture alike" in str(game.play_pointing_game(gallery))
