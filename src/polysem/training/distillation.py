"""Learning from a trained model as well as from pairs: what it would answer within a batch is a softer target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from polysem import distributed
from polysem.data import train_overlap
from polysem.data.collection import Collection
from polysem.data.store import FeatureStore
from polysem.errors import InputError
from polysem.evaluation.embeddings import embed
from polysem.models import Model, Tower, load
from polysem.progress import Progress
from polysem.recipes.schema import Teacher
from polysem.similarity import Similarity

Stores = tuple[FeatureStore | None, FeatureStore | None]


class Teaching:
    """A teacher's scores of any training items. It has made their sets once, of inputs as they are: (I, K, D) of
    images and (T, L, D) of captions."""

    def __init__(self, images: Tensor, texts: Tensor, similarity: Similarity) -> None:
        self.images, self.texts, self.similarity = images, texts, similarity

    @torch.no_grad()
    def scores(self, images: NDArray[np.int64], captions: NDArray[np.int64]) -> Tensor:
        """(images, captions), by their places in the training items."""
        sides = self.images[torch.from_numpy(images)], self.texts[torch.from_numpy(captions)]
        return self.similarity.scores(*sides)


def divergence(scores: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """How far a student's answers are from its teacher's: Kullback and Leibler's divergence, averaged over images,
    which pick among texts, and over texts, which pick among images."""
    return (_one_way(scores, taught, temperature) + _one_way(scores.t(), taught.t(), temperature)) / 2


def _one_way(scores: Tensor, taught: Tensor, temperature: float) -> Tensor:
    said, meant = (F.log_softmax(each / temperature, dim=1) for each in (scores, taught))
    return F.kl_div(said, meant, reduction="batchmean", log_target=True)


def teacher_of(entry: Teacher | None, val: Collection) -> Model | None:
    """The teacher that a recipe asks for. val: what picks the student's checkpoint, so the teacher may not know it."""
    if entry is None:
        return None
    model = load(entry.model)
    known = train_overlap.estimate_overlap(learned_from(model), val)
    if known > 0:
        raise InputError(
            f"teacher.model={entry.model} was trained on {known:.0%} of the validation items: the student would learn "
            "them from it, and the figures would flatter. Take a teacher that was trained on this recipe's train split."
        )
    return model


def learned_from(model: Model) -> list[str]:
    """The sketch of its training items: its students have met them too, if at second hand."""
    return list(model.provenance.get("data", {}).get("items", []))


def lessons(
    model: Model, entry: Teacher, train: Collection, stores: Stores, kept: Path, progress: Progress | None = None
) -> Teaching:
    """What the teacher makes of the training items, kept in a file. stores: the student's features, to spare the
    teacher's encoders the work where they are the same."""
    features = entry.features or _same(stores[0], model.image)
    text_features = entry.text_features or _same(stores[1], model.text)
    if distributed.rank() > 0:
        distributed.barrier()  # for the first process, which writes what the others read
    found = embed(model, train, features=features, text_features=text_features, cache=kept, progress=progress)
    if distributed.rank() == 0:
        distributed.barrier()
    return Teaching(found.images, found.texts, model.similarity)


def _same(store: FeatureStore | None, tower: Tower) -> Path | None:
    return store.folder if store is not None and store.fingerprint == tower.encoder.fingerprint() else None
