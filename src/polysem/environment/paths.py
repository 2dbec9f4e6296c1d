"""Files and folders of polysem itself: its cache, the models that come with it, the compiled search loops."""

from __future__ import annotations

import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]

PHOTO_SMALL = "polysem/photo-small"
"""The model for photographs: what `polysem index` takes where no model is named."""

SHIPPED = {PHOTO_SMALL: _PACKAGE / "models" / "shipped" / "photo-small"}
"""Folders of the models that come with polysem, by name."""


def cache_folder() -> Path:
    """Where polysem keeps what it can make again: `POLYSEM_CACHE`, or its folder among the user's caches."""
    configured = os.environ.get("POLYSEM_CACHE")
    if configured:
        return Path(configured).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polysem"


def search_kernels(folder: Path = _PACKAGE / "search" / "engine" / "native") -> str | None:
    """The file of the compiled search loops, or None if the install found no compiler. It is not loaded."""
    candidates = (folder / f"_kernels{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((str(path) for path in candidates if path.is_file()), None)
