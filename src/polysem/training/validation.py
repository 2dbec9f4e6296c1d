"""Validation: recalls both ways, the spread of the sets, and label metrics of the validation split."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from polysem.data.collection import Collection
from polysem.evaluation import compute_recalls
from polysem.evaluation.protocols import ModelScores
from polysem.evaluation.protocols.labels import LabelsProtocol
from polysem.evaluation.score_matrix import ScoreMatrix
from polysem.models import Model
from polysem.models.embedding import Items, embed, embed_both, embed_vectors
from polysem.training.monitoring.diagnosis import circular_variance

BATCH = 128
NDCG_DEPTH = 50
"""Validation splits are small."""


def validate(
    model: Model, images: Items[Any], texts: Items[Any], owners: np.ndarray, labelled: Collection | None = None
) -> dict[str, Any]:
    """The validation figures of a model. Changes nothing of it, and draws no random number.

    Args:
        owners: the image of each caption.
        labelled: the items, of a run that learns their labels.
    """
    forward = embed_both if labelled is not None else embed_vectors
    pictures, *image_classes = embed(model.image, images, BATCH, forward)
    captions, *text_classes = embed(model.text, texts, BATCH, forward)
    with torch.inference_mode():
        scores = model.similarity.scores(pictures.to(model.device), captions.to(model.device)).cpu()
    figures = compute_recalls(scores, owners)
    for side, sets in (("image", pictures), ("text", captions)):
        if sets.shape[1] > 1:
            variance = circular_variance(sets)
            figures.setdefault("log_variance", {})[side] = math.log(max(variance, 1e-12))
    if labelled is not None:
        predictions = {"image": image_classes[0], "text": text_classes[0], "classes": model.labels}
        protocol = LabelsProtocol("labels", "", k=NDCG_DEPTH)
        metrics = protocol.measure(ModelScores("", ScoreMatrix(scores), predictions=predictions), labelled, "").metrics
        names, ways = (f"ndcg{NDCG_DEPTH}", "map"), ("i2t", "t2i")
        figures["labels"] = {name: {way: float(metrics[way][name]) for way in ways} for name in names}
        figures["labels"]["micro_f1"] = dict(metrics["micro_f1"])
    return figures


def selection_score(figures: Mapping[str, Any]) -> float:
    """What picks the checkpoint: NDCG by labels, both ways, of a run that learns them; else RSUM."""
    labels = figures.get("labels")
    return float(sum(labels[f"ndcg{NDCG_DEPTH}"].values())) if labels else float(figures["rsum"])
