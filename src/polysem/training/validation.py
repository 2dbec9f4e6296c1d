"""Validation: recalls of the validation split, both ways, and how far its sets spread."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polysem.evaluation import retrieval
from polysem.models import Model, Tower
from polysem.models.encoding import move
from polysem.training.diagnosis import circular_variance
from polysem.training.feeding import Source

BATCH = 128


def validate(model: Model, images: Source, image_count: int, texts: Source, owners: np.ndarray) -> dict[str, Any]:
    """owners: the image of each caption. Changes nothing of the model, and draws no random number."""
    pictures, captions = embed(model.image, images, image_count), embed(model.text, texts, len(owners))
    with torch.inference_mode():
        scores = model.similarity.scores(pictures.to(model.device), captions.to(model.device)).cpu()
    found = retrieval(scores, owners)
    for name, vectors in (("image", pictures), ("text", captions)):
        if vectors.shape[1] > 1:
            spread = circular_variance(vectors)
            found.setdefault("log_variance", {})[name] = math.log(max(spread, 1e-12))
    return found


def embed(tower: Tower, source: Source, count: int) -> Tensor:
    """(count, K, D) on the CPU: every item of a source as it is, without augmentation."""
    training, device = tower.training, next(tower.parameters()).device
    tower.eval()
    parts = []
    try:
        with torch.inference_mode():
            for first in range(0, count, BATCH):
                places = np.arange(first, min(count, first + BATCH))
                parts.append(tower(move(source.load(places, None), device)).vectors.float().cpu())
    finally:
        tower.train(training)
    return torch.cat(parts)
