"""Whether the install found a compiler for the search loops, seen without loading them."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "search" / "engine" / "native"


def search_kernels(folder: Path = _FOLDER) -> str | None:
    """The file of the compiled search loops, or None where there is none."""
    candidates = (folder / f"_kernels{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((str(path) for path in candidates if path.is_file()), None)
