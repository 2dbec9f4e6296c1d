"""polysem: image–text search that keeps every meaning of an image."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polysem import _deprecated
from polysem._version import __version__

if TYPE_CHECKING:
    from polysem import data, encoders, models, objectives, pooling, sets, similarity
    from polysem.errors import PolysemError
    from polysem.features import LocalFeatures
    from polysem.models import Model, load

__all__ = ["LocalFeatures", "Model", "PolysemError", "__version__", "load"]
__all__ += ["data", "encoders", "models", "objectives", "pooling", "sets", "similarity"]

# Imported on first use: torch takes seconds to load, and `polysem --version` does not need it.
_NAMES = {"LocalFeatures": "features", "Model": "models", "PolysemError": "errors", "load": "models"}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(f"polysem.{_NAMES[name]}"), name)
    return import_module(f"polysem.{name}") if name in __all__ else _deprecated.find_deprecated(__name__)(name)


def __dir__() -> list[str]:
    return sorted(__all__)


_deprecated.install()
