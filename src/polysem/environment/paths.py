"""Files and folders of polysem itself: its cache, the models that come with it, the compiled search loops."""

from __future__ import annotations

import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]

PHOTO_BASE, PHOTO_SMALL = "polysem/photo-base", "polysem/photo-small"
"""The models for photographs, the better first: what `polysem index` takes where no model is named."""


def list_shipped(home: Path = _PACKAGE / "models" / "shipped") -> dict[str, Path]:
    """The model folders that lie in `home`, by the name under which they come with polysem."""
    return {f"polysem/{path.parent.name}": path.parent for path in sorted(home.glob("*/config.json"))}


SHIPPED = list_shipped()
"""Folders of the models that come with polysem, by name."""


WEIGHTS_MANIFEST = "weights.json"
"""The checksums of fetched weights, in their folder."""


def cache_folder() -> Path:
    """Where polysem keeps what it can make again: `POLYSEM_CACHE`, or its folder among the user's caches."""
    configured = os.environ.get("POLYSEM_CACHE")
    if configured:
        return Path(configured).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polysem"


def cached_weights(name: str) -> Path:
    """Where fetched weights are kept."""
    return cache_folder() / "weights" / name


def has_fetched_weights(name: str) -> bool:
    """Whether weights were fetched to this machine: a manifest is the last file that is written."""
    return (cached_weights(name) / WEIGHTS_MANIFEST).is_file()


def search_kernels(folder: Path = _PACKAGE / "search" / "engine" / "native") -> str | None:
    """The file of the compiled search loops, or None if the install found no compiler. It is not loaded."""
    candidates = (folder / f"_kernels{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((str(path) for path in candidates if path.is_file()), None)
