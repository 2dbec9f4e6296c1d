"""The frames of a video, each as a video of its own: what a search compares to find the moment."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polysem.features import LocalFeatures
from polysem.models.tower import Inputs, Tower

MOST = 64
"""Frames of a video that are looked at; of more, so many at even distances."""


def has_frames(tower: Tower) -> bool:
    """Whether what the tower embeds is a sequence in time."""
    return tower.encoder.kind == "video"


def chosen(count: int, most: int = MOST) -> NDArray[np.int64]:
    """(m,) which of `count` frames stand for all: the middles of as many equal parts."""
    kept = min(count, most)
    found: NDArray[np.int64] = ((np.arange(kept) + 0.5) * count / kept).astype(np.int64)
    return found


def with_frames(tower: Tower, inputs: Inputs, most: int = MOST) -> tuple[Tensor, list[Tensor]]:
    """(B, K, D) the items' sets, as the tower gives them, and (m, K, D) for each: the sets of its frames.

    A frame's set is what the tower makes of that frame's tokens alone, after the projection has seen all of them.
    """
    encoded, projected = tower.encode(inputs)
    vectors = tower.embed(encoded, projected).vectors
    return vectors, [frame_sets(tower, _item(encoded, row), _item(projected, row), most) for row in range(len(vectors))]


def frame_sets(tower: Tower, encoded: LocalFeatures, projected: LocalFeatures, most: int = MOST) -> Tensor:
    """(m, K, D) of one item without padding, from its local features before and after the projection."""
    rows = torch.from_numpy(chosen(projected.values.shape[1], most)).to(projected.values.device)
    return tower.embed(_alone(encoded, rows), _alone(projected, rows)).vectors


def _item(features: LocalFeatures, row: int) -> LocalFeatures:
    """One item of a batch without its padding."""
    real = features.mask[row]
    summary = None if features.summary is None else features.summary[row : row + 1]
    return LocalFeatures(features.values[row : row + 1, real], real[real][None], summary)


def _alone(item: LocalFeatures, frames: Tensor) -> LocalFeatures:
    """An item's frames, a token each, as a batch of items with one frame."""
    values = item.values[0, frames, None]
    summary = None if item.summary is None else item.summary.expand(len(frames), -1)
    return LocalFeatures(values, torch.ones(values.shape[:2], dtype=torch.bool, device=values.device), summary)
