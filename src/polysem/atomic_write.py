"""Files written aside and then put in place: what is there is the old one or the new one, never half of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path`, with the same ending, to write to. When the block ends well, the file takes its place."""
    aside = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        yield aside
        os.replace(aside, path)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text, whole or not at all."""
    with replacing(path) as aside:
        aside.write_text(text, encoding="utf-8")
