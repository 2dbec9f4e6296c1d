"""Distillation: a trained model's scores within a batch are a softer target than its pairs."""

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
from polysem.errors import InputError
from polysem.evaluation.embeddings import embed_collection
from polysem.models import Model, load
from polysem.progress import Progress
from polysem.recipes.schema import Teacher
from polysem.similarity import Similarity
from polysem.training.feature_cache import Stores


class TeacherScores:
    """A teacher's scores of training items, from its embeddings of them: (I, K, D) of images, (T, L, D) of captions."""

    def __init__(self, images: Tensor, texts: Tensor, similarity: Similarity) -> None:
        self.images, self.texts, self.similarity = images, texts, similarity

    @torch.no_grad()
    def scores(self, images: NDArray[np.int64], captions: NDArray[np.int64]) -> Tensor:
        """(images, captions), by their positions among the training items."""
        sides = self.images[torch.from_numpy(images)], self.texts[torch.from_numpy(captions)]
        return self.similarity.scores(*sides)


def kl_divergence(scores: Tensor, teacher_scores: Tensor, temperature: float) -> Tensor:
    """The Kullback-Leibler divergence of a student's answers from its teacher's, averaged over both ways: images pick
    among texts, texts among images."""
    total = scores.new_zeros(())
    for pair in ((scores, teacher_scores), (scores.t(), teacher_scores.t())):
        student, teacher = (F.log_softmax(each / temperature, dim=1) for each in pair)
        total = total + F.kl_div(student, teacher, reduction="batchmean", log_target=True)
    return total / 2


def load_teacher(entry: Teacher | None, val: Collection) -> Model | None:
    """The teacher that a recipe asks for; it must not have been trained on `val`, which picks the student's weights."""
    if entry is None:
        return None
    model = load(entry.model)
    share = train_overlap.estimate_overlap(training_items(model), val)
    if share > 0:
        raise InputError(
            f"teacher.model={entry.model} was trained on {share:.0%} of the validation items: the student would learn "
            "them from it, and the figures would flatter. Take a teacher that was trained on this recipe's train split."
        )
    return model


def training_items(model: Model) -> list[str]:
    """The sketch of a model's training items; its students have learned from them too."""
    return list(model.provenance.get("data", {}).get("items", []))


def embed_with_teacher(
    model: Model, entry: Teacher, train: Collection, stores: Stores, cache: Path, progress: Progress | None = None
) -> TeacherScores:
    """Embed the training items with the teacher, and keep that in the file `cache`. stores: the student's features,
    used where the teacher's encoders are the same."""
    fitting = [
        store.folder if store is not None and store.fingerprint == tower.encoder.fingerprint() else None
        for store, tower in zip(stores, (model.image, model.text), strict=True)
    ]
    folders = {"features": entry.features or fitting[0], "text_features": entry.text_features or fitting[1]}
    if distributed.rank() > 0:
        distributed.barrier()  # for the first process, which writes what the others read
    embedded = embed_collection(model, train, **folders, cache=cache, progress=progress)
    if distributed.rank() == 0:
        distributed.barrier()
    return TeacherScores(embedded.images, embedded.texts, model.similarity)
