"""A dictionary that forgets: what was used longest ago, and what has grown too old."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """Of one thread: the event loop's. seconds: how long an entry counts."""

    def __init__(self, size: int, seconds: float = float("inf"), clock: Callable[[], float] = time.monotonic) -> None:
        self._size, self._seconds, self._clock = size, seconds, clock
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self.hits = self.misses = 0

    def get(self, key: K) -> V | None:
        found = self._entries.get(key)
        if found is None or found[0] < self._clock():
            self._entries.pop(key, None)
            self.misses += 1
            return None
        self._entries.move_to_end(key)
        self.hits += 1
        return found[1]

    def put(self, key: K, value: V) -> None:
        self._entries[key] = (self._clock() + self._seconds, value)
        self._entries.move_to_end(key)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)
