"""How long work reports how far it is: one callback for all of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """Called as `progress(stage, done, total)` while work goes on."""

    def __call__(self, stage: str, done: int, total: int, /) -> None: ...


def ignore(stage: str, done: int, total: int, /) -> None:
    """A `Progress` that shows nothing."""


def rename_stage(progress: Progress, stage: str) -> Progress:
    """The same `Progress`, with this stage for whatever the work calls its own."""
    return lambda _, done, total: progress(stage, done, total)


def section(progress: Progress, first: int, count: int, total: int, stage: str | None = None) -> Progress:
    """The `Progress` of one part of a longer piece of work.

    Args:
        first, count, total: The part covers `count` of all `total` steps, beginning at step `first`.
        stage: What to call the work; by default what the part itself calls it.

    Example:
        >>> half = section(lambda *call: print(*call), 100, 100, 200, "ranking")
        >>> half("texts", 5, 10)
        ranking 150 200
    """
    return lambda name, done, of: progress(stage or name, first + count * done // max(1, of), total)


def thread_counter(progress: Progress, stage: str, total: int) -> Callable[[int], None]:
    """A function that several threads may call with how many steps they have just done."""
    done, lock = 0, threading.Lock()

    def advance(steps: int) -> None:
        nonlocal done
        with lock:
            done += steps
            progress(stage, done, total)

    return advance
