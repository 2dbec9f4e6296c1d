"""Former import paths of the public API: they work for one release, with a DeprecationWarning.

A name that moved out of a package that still exists is found by the package's `__getattr__`; a module that is gone is
found by a finder at the end of `sys.meta_path`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

REMOVED_IN = "0.3"

# "old.module:name": "new.module:name"
NAMES: dict[str, str] = {}


def find_deprecated(module: str) -> Callable[[str], Any]:
    """A module's `__getattr__` that finds the names which have left it.

    Args:
        module: `__name__` of the module.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        new = NAMES.get(f"{module}:{name}")
        if new is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        target, _, attribute = new.partition(":")
        warnings.warn(
            f"{module}.{name} is now {target}{f'.{attribute}' if attribute else ''}; "
            f"the old name goes in polysem {REMOVED_IN}.",
            DeprecationWarning,
            stacklevel=2,
        )
        found = import_module(target)
        return getattr(found, attribute) if attribute else found

    return __getattr__


class _RemovedModuleFinder(MetaPathFinder, Loader):
    """Finds modules that are gone, where a public name was in them."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith("polysem.") or not any(old.startswith((f"{name}:", f"{name}.")) for old in NAMES):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__getattr__"] = find_deprecated(module.__name__)


def install() -> None:
    """Add the finder of removed modules, once."""
    if not any(isinstance(finder, _RemovedModuleFinder) for finder in sys.meta_path):
        sys.meta_path.append(_RemovedModuleFinder())
