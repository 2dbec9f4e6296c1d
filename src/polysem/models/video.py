"""Videos: the sets of their frames, and which part of a video a query means.

The moment of a query is the best frame and its neighbours that score like it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polysem.errors import InputError, kind
from polysem.features import LocalFeatures
from polysem.models.tower import Inputs, Tower

MOST = 64
"""Frames of a video that are looked at; of more, so many at even distances."""


def has_frames(tower: Tower) -> bool:
    """Whether what the tower embeds is a sequence in time."""
    return tower.encoder.kind == "video"


def choose_frames(count: int, most: int = MOST) -> NDArray[np.int64]:
    """(m,) which of `count` frames stand for all: the middles of as many equal parts."""
    kept = min(count, most)
    found: NDArray[np.int64] = ((np.arange(kept) + 0.5) * count / kept).astype(np.int64)
    return found


def embed_with_frames(tower: Tower, inputs: Inputs, most: int = MOST) -> tuple[Tensor, list[Tensor]]:
    """(B, K, D) the items' sets, as the tower gives them, and (m, K, D) for each: the sets of its frames.

    A frame's set is what the tower makes of that frame's tokens alone, after the projection has seen all of them.
    """
    encoded, projected = tower.encode(inputs)
    vectors = tower.embed(encoded, projected).vectors
    frames = [
        tower.embed(*(_split_frames(features, row, most) for features in (encoded, projected))).vectors
        for row in range(len(vectors))
    ]
    return vectors, frames


def _split_frames(features: LocalFeatures, row: int, most: int) -> LocalFeatures:
    """One item's frames, a token each, as a batch of items with one frame."""
    real = features.values[row, features.mask[row]]
    values = real[torch.from_numpy(choose_frames(len(real), most)).to(real.device), None]
    summary = None if features.summary is None else features.summary[row].expand(len(values), -1)
    return LocalFeatures(values, torch.ones(values.shape[:2], dtype=torch.bool, device=values.device), summary)


HEIGHT = 2 / 3
"""How high between the curve's lowest and highest point a neighbour of the best frame still belongs to the moment."""
SHORT = 2.0
"""Seconds below which tenths tell a moment's start from its end."""


@dataclass(frozen=True)
class Moment:
    """The part of a video that matches best.

    time, start, end: seconds from the video's beginning; None where nobody knows how long it is. `time` is the middle
    of the best frame, start and end those of the part.
    score: of the best frame alone, under the model's similarity; an item's own score is of all its frames.
    frame, first, last: the same counted in the frames that were looked at, from 0; `last` belongs to it.
    curve: the score of each of them.
    """

    time: float | None
    start: float | None
    end: float | None
    score: float
    frame: int
    first: int
    last: int
    curve: Sequence[float]

    @property
    def text(self) -> str:
        """0:04–0:06, or the frames where there is no clock."""
        if self.start is None or self.end is None:
            return f"frame {self.first + 1}" if self.first == self.last else f"frames {self.first + 1}–{self.last + 1}"
        if self.end - self.start < SHORT:
            return f"{format_time(self.start, 1)}–{format_time(self.end, 1)}"
        return f"{format_time(math.floor(self.start))}–{format_time(math.ceil(self.end))}"


def find_moment(curve: NDArray[np.floating] | Sequence[float], duration: float | None = None) -> Moment:
    """The moment of a video whose frames, at even distances over `duration` seconds, have these scores.

    The best frame (of equal ones the first), and its neighbours on both sides while they score at least two thirds of
    the way from the lowest frame to it, whatever their scale. A flat curve is all moment.
    """
    scores = np.asarray(curve, np.float64)
    if scores.ndim != 1 or not len(scores) or not np.isfinite(scores).all():
        raise InputError(f"A moment is found in the finite scores of one video's frames, got {kind(curve)}.")
    best = int(scores.argmax())
    floor = scores.min() + HEIGHT * (scores[best] - scores.min())
    lower = np.flatnonzero(scores < floor)
    first = int(lower[lower < best].max(initial=-1)) + 1
    last = int(lower[lower > best].min(initial=len(scores))) - 1
    seconds = valid_duration(duration)
    width = None if seconds is None else seconds / len(scores)
    time, start, end = (None,) * 3 if width is None else ((best + 0.5) * width, first * width, (last + 1) * width)
    return Moment(time, start, end, float(scores[best]), best, first, last, tuple(scores.tolist()))


def valid_duration(duration: object) -> float | None:
    """A length in seconds; None if this is not one, as it may come from anybody's metadata."""
    if isinstance(duration, bool) or not isinstance(duration, (int, float)) or not np.isfinite(duration):
        return None
    return float(duration) if duration > 0 else None


def format_time(seconds: float, digits: int = 0) -> str:
    """0:04, 12:30, 1:02:03; with so many digits after the point."""
    whole = round(seconds, digits)
    hours, minutes, rest = int(whole // 3600), int(whole % 3600 // 60), whole % 60
    width = 2 if digits == 0 else 3 + digits
    return (f"{hours}:{minutes:02d}" if hours else f"{minutes}") + f":{rest:0{width}.{digits}f}"
