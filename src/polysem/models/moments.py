"""Which part of a video a query means: the frames that score like the best one, around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError, kind

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
            return f"{clock(self.start, 1)}–{clock(self.end, 1)}"
        return f"{clock(math.floor(self.start))}–{clock(math.ceil(self.end))}"


def moment_of(curve: NDArray[np.floating] | Sequence[float], duration: float | None = None) -> Moment:
    """The moment of a video whose frames, at even distances over `duration` seconds, have these scores.

    The best frame (of equal ones the first), and its neighbours on both sides while they score at least two thirds of
    the way from the lowest frame to it, so that it hangs on no scale. A flat curve is all moment.
    """
    scores = np.asarray(curve, np.float64)
    if scores.ndim != 1 or not len(scores) or not np.isfinite(scores).all():
        raise InputError(f"A moment is found in the finite scores of one video's frames, got {kind(curve)}.")
    best = int(scores.argmax())
    floor = scores.min() + HEIGHT * (scores[best] - scores.min())
    lower = np.flatnonzero(scores < floor)
    first = int(lower[lower < best].max(initial=-1)) + 1
    last = int(lower[lower > best].min(initial=len(scores))) - 1
    seconds = usable(duration)
    width = None if seconds is None else seconds / len(scores)
    time, start, end = (None,) * 3 if width is None else ((best + 0.5) * width, first * width, (last + 1) * width)
    return Moment(time, start, end, float(scores[best]), best, first, last, tuple(scores.tolist()))


def usable(duration: object) -> float | None:
    """A length in seconds, None if this is none: it may come from anybody's metadata."""
    if isinstance(duration, bool) or not isinstance(duration, (int, float)) or not np.isfinite(duration):
        return None
    return float(duration) if duration > 0 else None


def clock(seconds: float, digits: int = 0) -> str:
    """0:04, 12:30, 1:02:03; with so many digits after the point."""
    whole = round(seconds, digits)
    hours, minutes, rest = int(whole // 3600), int(whole % 3600 // 60), whole % 60
    width = 2 if digits == 0 else 3 + digits
    return (f"{hours}:{minutes:02d}" if hours else f"{minutes}") + f":{rest:0{width}.{digits}f}"
