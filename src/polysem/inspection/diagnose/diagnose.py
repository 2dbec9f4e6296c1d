"""One call from a model to its diagnosis: everything measured, and what it means."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from polysem.data.collection import Collection
from polysem.errors import InputError
from polysem.evaluation import metrics
from polysem.evaluation.ranking import rank_bidirectional
from polysem.evaluation.score_matrix import EmbeddingScores
from polysem.evaluation.top_k import TopK
from polysem.inspection.diagnose import error_analysis, geometry
from polysem.inspection.diagnose.pointing import PointingGame, play_pointing_game
from polysem.inspection.diagnose.query_pointing import QueryPointing, play_query_pointing
from polysem.inspection.diagnose.report import HealthVerdict, make_verdicts, render_report
from polysem.inspection.gallery import EmbeddedGallery, StorePath, open_gallery
from polysem.inspection.output import check_output_path, replace_output
from polysem.models import Model
from polysem.progress import Progress, ignore

REPORTS = (".html", ".json")
"""A page with its JSON beside it, or the JSON alone."""


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """All measurements of a model. Mappings by direction have the keys "i2t" and "t2i", by side "image" and "text".

    spreads, usages, as_one: of sets; empty and None for single vectors. pointing: the game's result, or in words why
    there is none. query_pointing: the same by query. left_out: what was not measured, and why. predicted: of a model
    that predicts labels.
    """

    gallery: EmbeddedGallery = field(repr=False)
    retrieval: Mapping[str, Any]
    space: geometry.EmbeddingGeometry
    hubness: Mapping[str, geometry.Hubness]
    calibration: Mapping[str, error_analysis.Calibration]
    failures: Mapping[str, list[error_analysis.RetrievalFailure]]
    spreads: Mapping[str, geometry.SetSpread]
    usages: Mapping[str, geometry.ElementUsage]
    as_one: geometry.SingleVectorOverlap | None
    confusions: Mapping[str, error_analysis.Confusions]
    pointing: PointingGame | str
    left_out: tuple[str, ...]
    predicted: error_analysis.LabelMetrics | None = None
    query_pointing: QueryPointing | str = ""

    @property
    def verdicts(self) -> list[HealthVerdict]:
        return make_verdicts(self)

    @property
    def headline(self) -> str:
        """In a line: what is wrong, or that nothing is."""
        about = {level: [v.about for v in self.verdicts if v.level == level] for level in ("bad", "watch")}
        bad, watch = (", ".join(dict.fromkeys(names)) for names in about.values())
        return f"Unhealthy: {bad}." if bad else f"Healthy; to watch: {watch}." if watch else "Healthy."

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; what could not be measured is null."""
        model = self.gallery.model
        result: dict[str, Any] = _as_json(
            {
                "model": self.gallery.name,
                "data": self.gallery.summary,
                "set_sizes": model.set_sizes,
                "similarity": dict(model.similarity.config),
                "headline": self.headline,
                "verdicts": self.verdicts,
                "retrieval": self.retrieval,
                "sets": self.spreads,
                "as_one": self.as_one,
                "slots": self.usages,
                "space": self.space,
                "hubness": self.hubness,
                "calibration": self.calibration,
                "labels": self.predicted,
                "confusions": self.confusions,
                "pointing": None if isinstance(self.pointing, str) else self.pointing,
                "query_pointing": None if isinstance(self.query_pointing, str) else self.query_pointing,
                "failures": {
                    way: [self._describe_failure(each, from_text=way == "t2i") for each in failures]
                    for way, failures in self.failures.items()
                },
                "left_out": self.left_out,
            }
        )
        return result

    def _describe_failure(self, failure: error_analysis.RetrievalFailure, from_text: bool) -> dict[str, Any]:
        """A failure with ids and captions in place of numbers."""
        items, captions = self.gallery.items, self.gallery.items.captions
        ids = [items[answer.item].id for answer in failure.answers]
        own = items[failure.item].id
        return {
            "query": captions[failure.query] if from_text else own,
            "item": own,
            "right": own if from_text else captions[failure.right],
            "rank": failure.rank,
            "answers": [
                {"answer": name if from_text else captions[answer.number], "item": name, "score": answer.score}
                for name, answer in zip(ids, failure.answers, strict=True)
            ],
        }

    def write(self, out: str | Path) -> Path:
        """The page (.html), with the same as JSON beside it; or the JSON alone (.json)."""
        path = check_output_path("a report", out, REPORTS)
        files = {path.with_suffix(".json"): json.dumps(self.as_dict(), indent=2, ensure_ascii=False) + "\n"}
        if path.suffix.lower() == ".html":
            files = {path: render_report(self), **files}
        for file, text in files.items():
            with replace_output("the report", file) as temporary:
                temporary.write_text(text, encoding="utf-8")
        return path


def diagnose(
    model: str | Path | Model,
    data: str | Path | Collection,
    *,
    out: str | Path | None = None,
    split: str | None = None,
    features: StorePath = None,
    text_features: StorePath = None,
    groups: Mapping[str, str] | str | Path | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Measure what can be wrong with a model, on a collection with captions.

    Args:
        out: where to write the report, a page (.html) with its JSON beside it, or .json alone.
        groups: label -> super-class, or a JSON file of it, to tell confusions apart; by default what the boxes say.
        progress: called with a stage, what is done of it and its total. The rest as for `evaluate`.

    Returns:
        The measurements, with `.verdicts`, `.headline`, `.as_dict()` and `.write()`.
    """
    if out is not None:
        check_output_path("a report", out, REPORTS)
    if isinstance(groups, (str, Path)):
        groups = _read_groups(Path(groups))
    gallery = open_gallery(model, data, split=split, features=features, text_features=text_features, progress=progress)
    result = diagnose_gallery(gallery, features=features, groups=groups, progress=progress)
    if out is not None:
        result.write(out)
    return result


def diagnose_gallery(
    gallery: EmbeddedGallery,
    *,
    features: StorePath = None,
    groups: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """`diagnose` of a gallery that is embedded already."""
    items, images, texts = gallery.items, gallery.embeddings.images, gallery.embeddings.texts
    similarity, owners = gallery.model.similarity, items.caption_items
    if len(items) < 2:
        raise InputError(f"{gallery.summary}: a diagnosis needs two items at least, and says something from 100 on.")
    scores = EmbeddingScores(images, texts, similarity)
    rankings, _ = rank_bidirectional(scores, owners, keep=metrics.DEPTH, progress=progress or ignore)
    best = {way: cast(TopK, ranking.top) for way, ranking in rankings.items()}
    image_items, text_items = list(range(len(items))), owners.tolist()
    calibration = {
        way: result
        for way, queries in (("i2t", image_items), ("t2i", text_items))
        if (result := error_analysis.measure_calibration(rankings[way], np.asarray(queries))) is not None
    }
    sides = {side: vectors for side, vectors in (("image", images), ("text", texts)) if vectors.shape[1] > 1}
    labelled = any(item.labels for item in items)
    groups = error_analysis.label_groups(items) if groups is None else dict(groups)
    pointing = play_pointing_game(gallery, features, progress)
    by_query = play_query_pointing(gallery, features, progress)
    single = " and ".join(side + "s" for side in ("image", "text") if side not in sides)
    reasons = {
        f"Variance and use of elements: {single} have a single vector each.": bool(single),
        "Calibration: too few queries, or their first answers are all right or all wrong.": len(calibration) < 2,
        "Confusions: these items have no labels.": not labelled,
        f"Pointing game: {pointing}": isinstance(pointing, str),
        f"Pointing by query: {by_query}": isinstance(by_query, str),
    }
    usages = dict(zip(("image", "text"), geometry.measure_usage(images, texts, owners, similarity), strict=True))
    figures = metrics.bidirectional_metrics(rankings)
    names = ("r1", "r5", "r10", "median_rank", "queries")
    return Diagnosis(
        gallery=gallery,
        retrieval={"rsum": figures["rsum"], **{way: {name: figures[way][name] for name in names} for way in rankings}},
        space=geometry.measure_geometry(images, texts, owners),
        hubness={
            way: geometry.measure_hubness(best[way], ranking.relevance.gallery) for way, ranking in rankings.items()
        },
        calibration=calibration,
        failures={
            "i2t": error_analysis.find_failures(rankings["i2t"], scores, image_items, text_items),
            "t2i": error_analysis.find_failures(rankings["t2i"], scores.transpose(), text_items, image_items),
        },
        spreads={side: geometry.measure_spread(vectors) for side, vectors in sides.items()},
        usages={side: usages[side] for side in sides},
        as_one=geometry.compare_with_single_vectors(best, images, texts, owners) if sides else None,
        confusions={
            way: error_analysis.count_confusions(ranking, items, groups, from_text=way == "t2i")
            for way, ranking in rankings.items()
            if labelled
        },
        pointing=pointing,
        left_out=tuple(reason for reason, holds in reasons.items() if holds),
        predicted=error_analysis.measure_labels(gallery),
        query_pointing=by_query,
    )


def _read_groups(path: Path) -> dict[str, str]:
    try:
        groups = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"Cannot read the super-classes in {path}: {error}.") from None
    if not isinstance(groups, dict) or not all(isinstance(value, str) for value in groups.values()):
        raise InputError(f'{path} must be a JSON object of labels and their super-class, {{"apple": "fruit"}}.')
    return groups


def _as_json(value: Any) -> Any:
    """Dataclasses as objects and tuples as lists; NaN, which JSON does not know, as null."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {key: _as_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
