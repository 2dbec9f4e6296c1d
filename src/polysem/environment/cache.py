"""Where polysem keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`POLYSEM_CACHE`, or polysem's folder among the user's caches."""
    given = os.environ.get("POLYSEM_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polysem"
