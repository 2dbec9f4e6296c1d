"""A dictionary that forgets: what was used longest ago, and what has grown too old."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """Of one thread: the event loop's. size: of all entries together, each of which counts one, or what `weigh` says.
    seconds: how long an entry counts."""

    def __init__(
        self,
        size: int,
        seconds: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
        weigh: Callable[[V], int] = lambda _: 1,
    ) -> None:
        self._size, self._seconds, self._clock, self._weigh = size, seconds, clock, weigh
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self.weight = 0
        self.hits = self.misses = 0

    def get(self, key: K) -> V | None:
        found = self._entries.get(key)
        if found is None or found[0] < self._clock():
            self._drop(key)
            self.misses += 1
            return None
        self._entries.move_to_end(key)
        self.hits += 1
        return found[1]

    def put(self, key: K, value: V) -> None:
        self._drop(key)
        self._entries[key] = (self._clock() + self._seconds, value)
        self.weight += self._weigh(value)
        while self.weight > self._size:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: K) -> None:
        if key in self._entries:
            self.weight -= self._weigh(self._entries.pop(key)[1])

    def __len__(self) -> int:
        return len(self._entries)
