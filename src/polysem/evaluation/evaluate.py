"""`evaluate`: one call from a model, a run or a score matrix to stamped metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from polysem.data import train_overlap
from polysem.data.collection import HELD_OUT_NAME, Collection
from polysem.data.readers import open_collection
from polysem.errors import InputError, kind
from polysem.evaluation import protocols
from polysem.evaluation.embeddings import embed_collection
from polysem.evaluation.protocols import ModelScores, Protocol
from polysem.evaluation.reports import significance, trec
from polysem.evaluation.rescoring import Rescoring
from polysem.evaluation.result import Evaluation
from polysem.evaluation.score_matrix import EmbeddingScores, EnsembleScores, ScoreMatrix, Scores
from polysem.models import Model, load
from polysem.progress import Progress, ignore
from polysem.similarity import Similarity

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
    """Measure retrieval under a protocol.

    Args:
        subject: A model or run folder, a `Model`, a score matrix (array, tensor or .npy file: images × captions in the
            collection's order), or several of these in a list: an ensemble, whose scores are averaged.
        data: A collection, or the path of one.
        protocol: A protocol or its name: `polysem.evaluation.catalogue()` has all.
        split: By default the protocol's, which is "test"; `pairs` and `parts` take what there is.
        rescore: A method of `Rescoring`.
        features, text_features: Feature stores; for an ensemble, one for all or one for each member.
        embeddings: A file to keep the embeddings in; read if it is there.
        intervals: Compute 95 % bootstrap intervals.
        trec_folder: Where to write the rankings as TREC files.

    Example:
        >>> import numpy as np
        >>> from polysem.data.collection import Collection, Item, Media
        >>> items = [Item(name, Media(Path("photos"), name), (f"a {name}",)) for name in ("cat", "dog")]
        >>> result = evaluate(np.eye(2), Collection("pets", "image", items), intervals=False)
        >>> result.metrics["i2t"]["r1"], str(result.stamp)
        (100.0, 'pets all, 2×2, hit rate, inductive, selection unknown')
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
    sources = [_open(member) for member in members]
    models = [source for source in sources if isinstance(source, Model)]
    if not models:
        options = {"--features": features, "--text-features": text_features, "--embeddings": embeddings}
        if useless := [option for option, value in options.items() if value is not None]:
            raise InputError(f"{' and '.join(useless)} is for models; a matrix of scores needs none. Leave it out.")
    default = None if chosen.split == "any" else chosen.split or "all"
    items, split_name = select_split(collection, split, models, default)
    gallery = chosen.gallery(items)
    names = [Path(m).name or str(m) if isinstance(m, (str, Path)) else type(m).__name__ for m in members]
    stores = [_one_each(each, len(members), of) for each, of in ((features, "features"), (text_features, "text"))]
    if not chosen.asks_captions:
        stores[1] = [None] * len(members)  # they hold features of captions, and queries are other texts
        if unable := [name for name, model in zip(names, sources, strict=True) if _reads_features(model)]:
            raise InputError(
                f"Protocol {chosen.name} asks queries of its own, and {unable[0]} reads texts as stored features. Take "
                "a model that reads texts, or --protocol pairs."
            )
    report = progress or ignore
    scored = [
        _score(source, name, gallery, report, features=images, text_features=texts, cache=embeddings)
        for source, name, images, texts in zip(sources, names, *stores, strict=True)
    ]
    how = {"rescoring": rescoring, "keep": trec.DEPTH if trec_folder is not None else 0, "progress": report}
    result = chosen.measure(_ensemble(scored), gallery, split_name, **how)
    if trec_folder is not None:
        trec.export_trec(result.rankings, gallery, Path(trec_folder), tag=names[0])
    trained = max((_trained_share(model, items) for model in models), default=0.0)
    remarks = result.stamp.remarks
    if trained > 0:
        much = "THIS SPLIT" if trained > 0.95 else f"{max(1, round(100 * trained))} % OF THIS SPLIT"
        remarks = (*remarks, f"TRAINED ON {much}")
    evaluation = Evaluation(
        " + ".join(names),
        replace(result.stamp, members=len(members), remarks=remarks),
        result.metrics,
        result.per_query,
        facts=scored[0].facts if len(scored) == 1 else {"members": [dict(each.facts) for each in scored]},
    )
    return replace(evaluation, intervals=significance.intervals(evaluation)) if intervals else evaluation


def _open(member: Any) -> Model | Scores:
    if isinstance(member, (Model, Scores)):
        return member
    if isinstance(member, (np.ndarray, Tensor)):
        return ScoreMatrix(member)
    if isinstance(member, (str, Path)):
        return ScoreMatrix.open(member) if str(member).endswith(".npy") else load(member)
    raise InputError(f"evaluate() takes a model, a folder, or a score matrix; got {kind(member)}.")


def select_split(
    collection: Collection, wanted: str | None, models: Sequence[Model], default: str | None = None
) -> tuple[Collection, str]:
    """The items to measure on, and their name for a reader. Without a default, "test" if there is one, else "val", else
    the first; models that were trained on a collection without splits are measured on what training held out."""
    if not collection.has_splits:
        if wanted not in (None, "all", "val"):
            raise InputError(
                f"{collection.name} has no splits, so no {wanted!r}. Take --split all, or --split val for the tenth "
                "that training holds out by id."
            )
        if wanted == "val" or (wanted is None and any(_trained_share(model, collection) > 0 for model in models)):
            return collection.hold_out()[0], HELD_OUT_NAME
        return collection, "all"
    if wanted is None:
        wanted = default or next(name for name in ("test", "val", *collection.splits) if name in collection.splits)
    return (collection if wanted == "all" else collection.split(wanted)), wanted


def _trained_share(model: Model, items: Collection) -> float:
    """The share of these items that the model was trained on, as far as it knows its training items."""
    return train_overlap.estimate_overlap(model.provenance.get("data", {}).get("items", []), items)


def _reads_features(source: Model | Scores) -> bool:
    return isinstance(source, Model) and source.text.encoder.takes == "features"


def _one_each(stores: Store | Sequence[Store], count: int, option: str) -> list[Store]:
    each = [stores] if stores is None or isinstance(stores, (str, Path)) else list(stores)
    each = each * count if len(each) == 1 else each
    if len(each) != count:
        raise InputError(f"{len(each)} stores of {option} for {count} models: give one for all, or one for each.")
    return each


def _score(source: Model | Scores, name: str, gallery: Collection, progress: Progress, **stores: Any) -> ModelScores:
    """stores: features, text_features and cache of `embed_collection`."""
    if isinstance(source, Scores):
        return ModelScores(name, source)
    stores["progress"] = lambda _, done, total: progress(f"encoding with {name}", done, total)
    vectors = embed_collection(source, gallery, **stores)
    similarity, sides = source.similarity, {"image": vectors.images, "text": vectors.texts}
    facts = {"set_sizes": list(source.set_sizes), "dim": source.dim, "similarity": similarity.config["name"]}
    return ModelScores(
        name,
        EmbeddingScores(vectors.images, vectors.texts, similarity),
        within={side: _score_within(side, own, similarity) for side, own in sides.items()},
        predictions={**vectors.predictions, "classes": source.labels} if source.labels and vectors.predictions else {},
        facts={**facts, "fingerprint": source.fingerprint()},
        selected_on=str(source.provenance.get("selected_on", "unknown")),
    )


def _score_within(side: str, sets: Tensor, similarity: Similarity) -> Scores:
    """The items of one side as queries (rows) of the same items (columns), as in a search of an index."""
    scores = EmbeddingScores(sets, sets, similarity)
    return scores if similarity.symmetric or side == "text" else scores.transpose()


def _ensemble(members: list[ModelScores]) -> ModelScores:
    if len(members) == 1:
        return members[0]
    splits = {each.selected_on for each in members}
    sides = [side for side in ("image", "text") if all(side in each.within for each in members)]
    return ModelScores(
        " + ".join(each.name for each in members),
        EnsembleScores([each.scores for each in members]),
        within={side: EnsembleScores([each.within[side] for each in members]) for side in sides},
        selected_on=" and ".join(sorted(splits)) if "unknown" not in splits else "unknown",
    )
