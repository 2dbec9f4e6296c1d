"""One call from a model, a run or a score matrix to stamped figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from polysem.data import train_overlap
from polysem.data.collection import HELD_OUT_NAME, Collection
from polysem.data.readers import open_collection
from polysem.errors import InputError, kind
from polysem.evaluation import protocols, significance
from polysem.evaluation.embeddings import embed
from polysem.evaluation.protocols import Measured, Protocol, Subject
from polysem.evaluation.reports import trec
from polysem.evaluation.rescoring import Rescoring
from polysem.evaluation.result import Evaluation
from polysem.evaluation.score_matrix import Embedded, Matrix, Mean, Scores
from polysem.models import Model, load

Progress = Callable[[str, int, int], None]
"""Stage, done, of."""
Store = str | Path | None


def evaluate(
    subject: Any,
    data: str | Path | Collection,
    *,
    protocol: str | Protocol = "pairs",
    split: str | None = None,
    rescore: str | Rescoring | None = None,
    features: Store | Sequence[Store] = None,
    text_features: Store | Sequence[Store] = None,
    embeddings: str | Path | None = None,
    intervals: bool = True,
    trec_folder: str | Path | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure under a protocol.

    subject: a model or run folder, a `Model`, a score matrix (array, tensor or .npy file: images × captions in the
    collection's order), or several of these in a list: an ensemble, whose scores are averaged.
    split: by default the protocol's, which is "test"; `pairs` takes what there is. rescore: see `Rescoring`.
    features, text_features: feature stores; for an ensemble, one for each member. embeddings: a file to keep the
    embeddings in. intervals: 95 % bootstrap intervals. trec_folder: where to write the rankings as TREC files.
    """
    chosen = protocol if isinstance(protocol, Protocol) else protocols.find(str(protocol))
    if trec_folder is not None and getattr(chosen, "folds", 1) > 1 and not getattr(chosen, "whole", False):
        raise InputError(f"Protocol {chosen.name} has a ranking for each fold, and --trec writes one. Leave it out.")
    members = list(subject) if isinstance(subject, (list, tuple)) else [subject]
    if not members:
        raise InputError("Nothing to evaluate: give a model, a run or a score matrix.")
    if embeddings is not None and len(members) > 1:
        raise InputError("--embeddings keeps the embeddings of one model; leave it out for an ensemble.")
    rescoring = Rescoring(rescore) if isinstance(rescore, str) else rescore  # type: ignore[arg-type]
    collection = data if isinstance(data, Collection) else open_collection(data)
    opened = [_opened(member) for member in members]
    if not any(isinstance(each, Model) for each in opened):
        given = {"--features": features, "--text-features": text_features, "--embeddings": embeddings}
        if useless := [option for option, value in given.items() if value is not None]:
            raise InputError(f"{' and '.join(useless)} is for models; a matrix of scores needs none. Leave it out.")
    part, name = _split(collection, chosen, split, [each for each in opened if isinstance(each, Model)])
    gallery = chosen.gallery(part)
    stores = [_each(given, len(members), option) for given, option in ((features, "features"), (text_features, "text"))]
    subjects = [
        _subject(each, _name(member), gallery, stores[0][place], stores[1][place], embeddings, progress)
        for place, (member, each) in enumerate(zip(members, opened, strict=True))
    ]
    measured = chosen.measure(
        _ensemble(subjects),
        gallery,
        name,
        rescoring=rescoring,
        keep=trec.DEPTH if trec_folder is not None else 0,
        progress=None if progress is None else lambda done, total: progress("ranking", done, total),
    )
    if trec_folder is not None:
        trec.export(measured.rankings, gallery, Path(trec_folder), tag=subjects[0].name)
    trained = max((_trained_on(each, gallery) for each in opened if isinstance(each, Model)), default=0.0)
    return _finished(measured, subjects, trained, intervals)


def _finished(measured: Measured, subjects: list[Subject], trained: float, intervals: bool) -> Evaluation:
    """trained: the share of the gallery that a model was trained on."""
    stamp = replace(measured.stamp, members=len(subjects))
    if trained > 0:
        much = "THIS SPLIT" if trained > 0.95 else f"{max(1, round(100 * trained))} % OF THIS SPLIT"
        stamp = stamp.with_remark(f"TRAINED ON {much}")
    found = Evaluation(
        " + ".join(each.name for each in subjects),
        stamp,
        measured.metrics,
        measured.per_query,
        facts=subjects[0].facts if len(subjects) == 1 else {"members": [dict(each.facts) for each in subjects]},
    )
    return replace(found, intervals=significance.intervals(found)) if intervals else found


def _opened(member: Any) -> Model | Scores:
    if isinstance(member, (Model, Scores)):
        return member
    if isinstance(member, (np.ndarray, Tensor)):
        return Matrix(member)
    if isinstance(member, (str, Path)):
        return Matrix.open(member) if str(member).endswith(".npy") else load(member)
    raise InputError(f"evaluate() takes a model, a folder, or a score matrix; got {kind(member)}.")


def _name(member: Any) -> str:
    return Path(member).name or str(member) if isinstance(member, (str, Path)) else type(member).__name__


def _split(
    collection: Collection, protocol: Protocol, wanted: str | None, models: list[Model]
) -> tuple[Collection, str]:
    """The part to measure on, and what the stamp calls it."""
    if not collection.has_splits:
        if wanted not in (None, "all", "val"):
            raise InputError(
                f"{collection.name} has no splits, so no {wanted!r}. Take --split all, or --split val for the tenth "
                "that training holds out by id."
            )
        trained_here = any(_trained_on(model, collection) > 0 for model in models)
        if wanted == "val" or (wanted is None and trained_here):
            return collection.held_out()[0], HELD_OUT_NAME
        return collection, "all"
    if wanted is None:
        there = [name for name in ("test", "val", *collection.splits) if name in collection.splits]
        wanted = there[0] if protocol.name == "pairs" else protocol.split or "all"
    return (collection if wanted == "all" else collection.split(wanted)), wanted


def _trained_on(model: Model, items: Collection) -> float:
    """The share of these items that the model was trained on, as far as it knows its training items."""
    return train_overlap.share(model.provenance.get("data", {}).get("items", []), items)


def _each(given: Store | Sequence[Store], count: int, option: str) -> list[Store]:
    stores = [given] if given is None or isinstance(given, (str, Path)) else list(given)
    if len(stores) == 1 and count > 1:
        stores = stores * count
    if len(stores) != count:
        raise InputError(f"{len(stores)} stores of {option} for {count} models: give one for all, or one for each.")
    return stores


def _subject(
    opened: Model | Scores,
    name: str,
    gallery: Collection,
    features: Store,
    text_features: Store,
    cache: str | Path | None,
    progress: Progress | None,
) -> Subject:
    if isinstance(opened, Scores):
        return Subject(name, opened)
    found = embed(
        opened,
        gallery,
        features=features,
        text_features=text_features,
        cache=cache,
        progress=None if progress is None else lambda done, total: progress(f"encoding with {name}", done, total),
    )
    similarity = opened.similarity
    within = {
        "image": Embedded(found.images, found.images, similarity),
        "text": Embedded(found.texts, found.texts, similarity),
    }
    facts = {
        "set_sizes": list(opened.set_sizes),
        "dim": opened.dim,
        "similarity": similarity.config["name"],
        "fingerprint": opened.fingerprint(),
    }
    return Subject(
        name,
        Embedded(found.images, found.texts, similarity),
        within=within,
        predictions={**found.predictions, "classes": opened.labels} if opened.labels and found.predictions else {},
        facts=facts,
        selected_on=str(opened.provenance.get("selected_on", "unknown")),
    )


def _ensemble(subjects: list[Subject]) -> Subject:
    if len(subjects) == 1:
        return subjects[0]
    chosen = {each.selected_on for each in subjects}
    return Subject(
        " + ".join(each.name for each in subjects),
        Mean([each.scores for each in subjects]),
        within={
            side: Mean([each.within[side] for each in subjects])
            for side in ("image", "text")
            if all(side in each.within for each in subjects)
        },
        selected_on=" and ".join(sorted(chosen)) if "unknown" not in chosen else "unknown",
    )
