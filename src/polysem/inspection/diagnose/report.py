"""One call from a model to its diagnosis: everything measured, and what it means."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from polysem import atomic_write
from polysem.data.collection import Collection
from polysem.errors import InputError
from polysem.evaluation import metrics
from polysem.evaluation.ranking import BidirectionalRanking, rank_bidirectional
from polysem.evaluation.score_matrix import EmbeddingScores
from polysem.inspection.diagnose import page
from polysem.inspection.diagnose.calibration import Calibration, calibration
from polysem.inspection.diagnose.confusions import Confusions, confusions, groups_of
from polysem.inspection.diagnose.failures import Failure, failures
from polysem.inspection.diagnose.geometry import Hubness, Space, hubness, space
from polysem.inspection.diagnose.label_metrics import Predicted, predicted
from polysem.inspection.diagnose.pointing import Pointing, pointing
from polysem.inspection.diagnose.sets import AsOne, Spread, as_one, spread
from polysem.inspection.diagnose.slots import Usage, usage
from polysem.inspection.diagnose.verdicts import Verdict, headline, judge
from polysem.inspection.gallery import Gallery, Progress, Store, open_gallery
from polysem.models import Model
from polysem.progress import ignore


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What was found. Mappings by direction have the keys "i2t" and "t2i", by side "image" and "text".

    spreads, usages, as_one: of sets; empty and None for single vectors. pointing: the game's result, or in words why
    there is none. left_out: what was not measured, and why. predicted: of a model that predicts labels.
    """

    gallery: Gallery = field(repr=False)
    retrieval: Mapping[str, Any]
    space: Space
    hubness: Mapping[str, Hubness]
    calibration: Mapping[str, Calibration]
    failures: Mapping[str, list[Failure]]
    spreads: Mapping[str, Spread]
    usages: Mapping[str, Usage]
    as_one: AsOne | None
    confusions: Mapping[str, Confusions]
    pointing: Pointing | str
    left_out: tuple[str, ...]
    predicted: Predicted | None = None

    @property
    def verdicts(self) -> list[Verdict]:
        return judge(self)

    @property
    def headline(self) -> str:
        return headline(self.verdicts)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; what could not be measured is null."""
        items, captions = self.gallery.items, self.gallery.items.captions

        def failure(way: str, each: Failure) -> dict[str, Any]:
            asks, answers = ("image", "text") if way == "i2t" else ("text", "image")

            def called(side: str, place: int, item: int) -> str:
                return captions[place] if side == "text" else items[item].id

            return {
                "query": called(asks, each.query, each.item),
                "item": items[each.item].id,
                "right": called(answers, each.right, each.item),
                "rank": each.rank,
                "answers": [
                    {"answer": called(answers, a.place, a.item), "item": items[a.item].id, "score": a.score}
                    for a in each.answers
                ],
            }

        model = self.gallery.model
        found = {
            "model": self.gallery.name,
            "data": self.gallery.described,
            "set_sizes": list(model.set_sizes),
            "similarity": dict(model.similarity.config),
            "headline": self.headline,
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "retrieval": dict(self.retrieval),
            "sets": {side: asdict(each) for side, each in self.spreads.items()},
            "as_one": None if self.as_one is None else asdict(self.as_one),
            "slots": {side: asdict(each) for side, each in self.usages.items()},
            "space": asdict(self.space),
            "hubness": {way: asdict(each) for way, each in self.hubness.items()},
            "calibration": {way: asdict(each) for way, each in self.calibration.items()},
            "labels": None if self.predicted is None else asdict(self.predicted),
            "confusions": {way: asdict(each) for way, each in self.confusions.items()},
            "pointing": None if isinstance(self.pointing, str) else asdict(self.pointing),
            "failures": {way: [failure(way, each) for each in some] for way, some in self.failures.items()},
            "left_out": list(self.left_out),
        }
        cleaned: dict[str, Any] = _plain(found)
        return cleaned

    def write(self, out: str | Path) -> Path:
        """The page (.html), with the same as JSON beside it; or the JSON alone (.json)."""
        path = checked(out)
        data = json.dumps(self.as_dict(), indent=2, ensure_ascii=False) + "\n"
        if path.suffix.lower() == ".html":
            _write(path, page.html(self))
        _write(path.with_suffix(".json"), data)
        return path


def diagnose(
    model: str | Path | Model,
    data: str | Path | Collection,
    *,
    out: str | Path | None = None,
    split: str | None = None,
    features: Store = None,
    text_features: Store = None,
    groups: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Look a model over, on a collection with captions.

    out: where to write the report, a page (.html) with its JSON beside it, or .json alone. groups: label ->
    super-class, to tell confusions apart; by default what the boxes' groups say. The rest as for `evaluate`.
    """
    if out is not None:
        checked(out)
    gallery = open_gallery(model, data, split=split, features=features, text_features=text_features, progress=progress)
    found = examine(gallery, features=features, groups=groups, progress=progress)
    if out is not None:
        found.write(out)
    return found


def examine(
    gallery: Gallery,
    *,
    features: Store = None,
    groups: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """`diagnose` of a gallery that is open."""
    items, images, texts = gallery.items, gallery.embeddings.images, gallery.embeddings.texts
    model = gallery.model
    if len(items) < 2:
        raise InputError(
            f"{gallery.described}: with one item every answer is right. A diagnosis needs two at least, and says "
            "something from a hundred on."
        )
    owners = items.caption_items
    scores = EmbeddingScores(images, texts, model.similarity)
    ranked, _ = rank_bidirectional(scores, owners, keep=metrics.DEPTH, progress=progress or ignore)
    if ranked is None or ranked.i2t.top is None or ranked.t2i.top is None:
        raise AssertionError("the whole gallery was asked for")
    ways = {"i2t": ranked.i2t, "t2i": ranked.t2i}
    best = {"i2t": ranked.i2t.top, "t2i": ranked.t2i.top}
    of_images, of_texts = list(range(len(items))), owners.tolist()
    asking = {"i2t": of_images, "t2i": of_texts}
    answering = {"i2t": of_texts, "t2i": of_images}
    ahead = {"i2t": scores, "t2i": scores.transpose()}
    left_out = []
    sides = {side: vectors for side, vectors in (("image", images), ("text", texts)) if vectors.shape[1] > 1}
    if len(sides) < 2:
        which = " and ".join(side + "s" for side in ("image", "text") if side not in sides)
        left_out.append(
            f"Variance and use of elements: {which} have a single vector here, so there is nothing to tell."
        )
    calibrated = {
        way: found
        for way, ranking in ways.items()
        if (found := calibration(ranking, np.asarray(asking[way]))) is not None
    }
    if len(calibrated) < 2:
        left_out.append("Calibration: too few queries, or their first answers are all right or all wrong.")
    labelled = any(item.labels for item in items)
    if not labelled:
        left_out.append("Confusions: these items have no labels.")
    pointed = pointing(gallery, features, progress)
    if isinstance(pointed, str):
        left_out.append(f"Pointing game: {pointed}")
    known = groups_of(items) if groups is None else dict(groups)
    both = dict(zip(("image", "text"), usage(images, texts, owners, model.similarity), strict=True))
    return Diagnosis(
        gallery,
        _retrieval(ranked),
        space(images, texts, owners),
        {way: hubness(best[way], ranking.relevance.gallery) for way, ranking in ways.items()},
        calibrated,
        {way: failures(ranking, ahead[way], asking[way], answering[way]) for way, ranking in ways.items()},
        {side: spread(vectors) for side, vectors in sides.items()},
        {side: both[side] for side in sides},
        as_one(best, images, texts, owners) if sides else None,
        {way: confusions(r, items, known, texts_ask=way == "t2i") for way, r in ways.items()} if labelled else {},
        pointed,
        tuple(left_out),
        predicted(gallery),
    )


def _retrieval(ranked: BidirectionalRanking) -> dict[str, Any]:
    found = metrics.bidirectional_metrics(ranked)
    kept = ("r1", "r5", "r10", "median_rank", "queries")
    return {"rsum": found["rsum"], **{way: {name: found[way][name] for name in kept} for way in ("i2t", "t2i")}}


def checked(out: str | Path) -> Path:
    path = Path(out).expanduser()
    if path.suffix.lower() not in (".html", ".json"):
        raise InputError(
            f"A report is a page (.html, with its JSON beside it) or .json alone, got {str(out)!r}. "
            "Give --out a name that ends in one of these."
        )
    return path


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write.write_text(path, text)
    except OSError as error:
        raise InputError(f"Cannot write the report to {path}: {error.strerror or error}.") from None


def _plain(value: Any) -> Any:
    """NaN is no JSON, and a tuple is a list there."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
