"""Which segments are rewritten together, and the rows they bring along."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysem.search.store.segments import Column, Segment

SEGMENT_BYTES = 2**30
_BLOCK_BYTES = 2**24
_CROWD = 16
_SMALL_BYTES = 2**26  # larger ones wait for `compact`: merging many of them would be a long surprise


@dataclass(frozen=True)
class Old:
    """A segment that may be rewritten. segment: None if no row of it counts, so that nothing of it is read."""

    number: int
    side: str
    live: NDArray[np.bool_]
    segment: Segment | None

    @property
    def count(self) -> int:
        return int(self.live.sum())

    @property
    def bytes(self) -> int:
        """Of the rows that count."""
        return 0 if self.segment is None else self.segment.bytes * self.count // len(self.live)

    @property
    def worth_rewriting(self) -> bool:
        return self.count < len(self.live) or self.bytes < SEGMENT_BYTES // 2

    @property
    def kind(self) -> tuple[Any, ...]:
        """Equal for segments that may share a file."""
        return (self.side, () if self.segment is None else self.segment.signature)


def crowds(segments: Iterable[tuple[int, str, int, int]]) -> Iterator[list[int]]:
    """Numbers of segments (number, side, live, bytes) of like size that are too many for one side.

    Sizes are like within a factor of `_CROWD`, so an item is copied about log(n) / log(`_CROWD`) times in its life.
    """
    small = [
        (side, int(math.log(max(1, live), _CROWD)), number)
        for number, side, live, size in segments
        if size < _SMALL_BYTES
    ]
    for _, same in groupby(sorted(small), key=lambda one: one[:2]):
        numbers = [number for *_, number in same]
        if len(numbers) >= _CROWD:
            yield numbers


def groups(old: Iterable[Old]) -> Iterator[list[Old]]:
    """Segments to rewrite into one each: those with dead rows, and small ones that have company."""
    for _, same in groupby(sorted(old, key=lambda one: (one.kind, one.number)), key=lambda one: one.kind):
        group: list[Old] = []
        for one in same:
            if group and sum(each.bytes for each in group) + one.bytes > SEGMENT_BYTES:
                yield from _unless_pointless(group)
                group = []
            group.append(one)
        yield from _unless_pointless(group)


def _unless_pointless(group: list[Old]) -> Iterator[list[Old]]:
    if len(group) > 1 or not all(one.live.all() for one in group):
        yield group


def gathered(group: list[Old]) -> dict[str, Column]:
    """The live rows of all arrays of a group, in the order of the group, read a block at a time."""
    first = next(one.segment for one in group if one.segment is not None)
    return {name: Column(array.dtype, array.shape[1:], _rows(group, name)) for name, array in first.arrays.items()}


def _rows(group: list[Old], name: str) -> Iterator[NDArray[Any]]:
    for one in group:
        if one.segment is None:
            continue
        step = max(1, _BLOCK_BYTES // max(1, one.segment.arrays[name][:1].nbytes))
        for start in range(0, len(one.live), step):
            live = one.live[start : start + step]
            if live.any():
                yield one.segment.read(name, range(start, start + len(live)))[live]
