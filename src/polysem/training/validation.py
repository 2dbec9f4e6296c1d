"""Validation: recalls of the validation split, both ways, how far its sets spread, and how its labels are met."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polysem.data.collection import Collection
from polysem.evaluation import compute_recalls
from polysem.evaluation.protocols import ModelScores
from polysem.evaluation.protocols.labels import LabelsProtocol
from polysem.evaluation.score_matrix import ScoreMatrix
from polysem.models import Model
from polysem.models.embedding import embed, vectors, vectors_and_probabilities
from polysem.models.items import Items
from polysem.training.diagnosis import circular_variance

BATCH = 128
CUT = 50
"""Of NDCG: validation splits are small."""


def validate(
    model: Model,
    images: Items[Any],
    texts: Items[Any],
    owners: np.ndarray,
    labelled: Collection | None = None,
) -> dict[str, Any]:
    """owners: the image of each caption. labelled: the items, of a run that learns their labels. Changes nothing of the
    model, and draws no random number."""
    forward = vectors_and_probabilities if labelled is not None else vectors
    pictures, *image_classes = embed(model.image, images, BATCH, forward)
    captions, *text_classes = embed(model.text, texts, BATCH, forward)
    with torch.inference_mode():
        scores = model.similarity.scores(pictures.to(model.device), captions.to(model.device)).cpu()
    found = compute_recalls(scores, owners)
    for name, sets in (("image", pictures), ("text", captions)):
        if sets.shape[1] > 1:
            spread = circular_variance(sets)
            found.setdefault("log_variance", {})[name] = math.log(max(spread, 1e-12))
    if labelled is not None:
        predictions = {"image": image_classes[0], "text": text_classes[0], "classes": model.labels}
        found["labels"] = by_labels(scores, labelled, predictions)
    return found


def by_labels(scores: Tensor, items: Collection, predictions: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """NDCG and mAP both ways, and micro-F1 of each side, as the protocol `labels` measures them."""
    protocol = LabelsProtocol("labels", "", k=CUT)
    measured = protocol.measure(ModelScores("", ScoreMatrix(scores), predictions=predictions), items, "").metrics
    found = {name: {way: float(measured[way][name]) for way in ("i2t", "t2i")} for name in (f"ndcg{CUT}", "map")}
    return {**found, "micro_f1": dict(measured["micro_f1"])}


def merit(found: Mapping[str, Any]) -> float:
    """What picks the checkpoint: NDCG by labels, both ways, of a run that learns them; else RSUM."""
    labels = found.get("labels")
    return float(sum(labels[f"ndcg{CUT}"].values())) if labels else float(found["rsum"])
