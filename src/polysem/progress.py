"""How long work reports how far it is: one callback for all of it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called as `progress(stage, done, total)` while work goes on."""

    def __call__(self, stage: str, done: int, total: int, /) -> None: ...


def ignore(stage: str, done: int, total: int, /) -> None:
    """A `Progress` that shows nothing."""
