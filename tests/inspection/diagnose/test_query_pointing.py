"""The pointing game by query, with maps that are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from inspection.diagnose.test_pointing import GRID, boxed
from polysem.inspection.attention import Attention
from polysem.inspection.diagnose import diagnose_gallery
from polysem.inspection.diagnose import query_pointing as game
from polysem.inspection.diagnose.report import render_report
from polysem.inspection.gallery import EmbeddedGallery
from polysem.inspection.token_boxes import locate_regions
from polysem.sets import SetSum, WeightedTokens

NOUNS = {"dog": torch.eye(12)[:1], "cat": torch.eye(12)[1:2]}


def asking(monkeypatch: pytest.MonkeyPatch, gallery: EmbeddedGallery, says: str) -> game.QueryPointing | str:
    """The game where the token on a thing says its name (named), the name of the other thing (other), or where the
    first token says both (corner)."""
    texts = gallery.embeddings.texts
    for number, item in enumerate(gallery.items):
        for place, caption in enumerate(item.captions):
            texts[2 * number + place] = NOUNS["dog" if "dog" in caption else "cat"]

    def attentions(_: EmbeddedGallery, images: list[int], *__: object, **___: object) -> Iterator[Attention]:
        for image in images:
            values = torch.zeros(1, 9, 12)
            for box in gallery.items[image].boxes:
                cell = GRID.index([box.x0, box.y0, box.x1, box.y1]) if says != "corner" else 0
                name = box.name if says != "other" else {"dog": "cat", "cat": "dog"}[box.name]
                if says != "nothing":
                    values[0, cell] += NOUNS[name][0]
            sums = SetSum((WeightedTokens(torch.full((1, 1, 9), 1 / 9), values),), torch.zeros(1, 1, 12))
            yield Attention(sums.vectors[0] + 1e-6, torch.full((1, 1, 9), 1 / 9), "attention", sums=sums)

    monkeypatch.setattr(game, "iterate_attentions", attentions)
    monkeypatch.setattr(game, "locate_item_tokens", lambda *_: locate_regions(GRID, (30, 30)))
    monkeypatch.setattr(game, "ImageEncoder", object)
    monkeypatch.setattr(game, "_encode_nouns", lambda *_: NOUNS)
    return game.play_query_pointing(gallery)


def test_maps_that_follow_the_words_hit_always(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asking(monkeypatch, boxed(), "named")
    assert isinstance(found, game.QueryPointing)
    assert (found.pictures, found.how, found.elsewhere) == (60, "sum", 0.0)
    for rate in (found.nouns, found.captions):
        assert rate is not None
        assert (rate.accuracy.value, rate.accuracy.trials) == (1.0, 120)
        assert rate.chance == pytest.approx(1 / 9)
        assert rate.above.low > 0.7


def test_maps_of_the_other_thing_never_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asking(monkeypatch, boxed(), "other")
    assert isinstance(found, game.QueryPointing)
    assert found.nouns is not None
    assert (found.nouns.accuracy.value, found.elsewhere) == (0.0, 1.0)
    assert found.nouns.above.high < 0


def test_a_fixed_peak_is_no_merit(monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = boxed()
    found = asking(monkeypatch, gallery, "corner")
    assert isinstance(found, game.QueryPointing)
    assert found.nouns is not None
    assert found.nouns.habit == pytest.approx(found.nouns.accuracy.value)
    assert found.nouns.above.low <= 0.0


def test_even_maps_do_not_play(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "even" in str(asking(monkeypatch, boxed(), "nothing"))


def test_the_report_and_its_json_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asking(monkeypatch, boxed(), "named")
    monkeypatch.undo()
    diagnosis = replace(diagnose_gallery(boxed()), query_pointing=found)
    page = render_report(diagnosis)
    assert "Pointing by query: does the map of the score follow the words?" in page
    assert "100.0% (100.0% to 100.0%)" in page
    assert diagnosis.as_dict()["query_pointing"]["nouns"]["accuracy"]["trials"] == 120
    about = {verdict.about: verdict for verdict in diagnosis.verdicts}
    assert about["explanations point at what is asked for"].level == "good"


def test_without_boxes_or_places_it_says_why() -> None:
    gallery = boxed()
    assert "not known" in str(game.play_query_pointing(gallery))
    items = gallery.items.where([])
    assert game.play_query_pointing(replace(gallery, items=items)) == "No boxes are known of these pictures."
