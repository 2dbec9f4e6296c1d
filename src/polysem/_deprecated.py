"""Former import paths of the public API: they work for one release, with a DeprecationWarning.

`deprecated_names.json` maps "old.module:name" to "new.module:name". A finder at the head of `sys.meta_path` gives each
old module a `__getattr__` that follows the table, and makes the modules that no longer exist.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

REMOVED_IN = "0.3"
NAMES: dict[str, str] = json.loads(Path(__file__).with_name("deprecated_names.json").read_text(encoding="utf-8"))


def find_deprecated(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module, given its `__name__`, that finds the names which have left it."""

    def __getattr__(name: str) -> Any:  # noqa: N807
        new = NAMES.get(f"{module}:{name}")
        if new is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        target, _, attribute = new.partition(":")
        present = f"{target}.{attribute}" if attribute else target
        warn_renamed(f"{module}.{name}", present)
        return getattr(import_module(target), attribute) if attribute else import_module(target)

    return __getattr__


class renamed_attribute:  # noqa: N801
    """A descriptor for the former name of an attribute or method of a class, also of a class method."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def __get__(self, instance: object, owner: type) -> Any:
        warn_renamed(f"{owner.__name__}.{self.old}", self.new)
        return getattr(owner if instance is None else instance, self.new)


def warn_renamed(old: str, new: str) -> None:
    """Of a former name that the caller's caller has used."""
    warnings.warn(f"{old} is now {new}; the old name goes in polysem {REMOVED_IN}.", DeprecationWarning, stacklevel=3)


class _DeprecatedFinder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith("polysem.") or not any(old.startswith((f"{name}:", f"{name}.")) for old in NAMES):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:  # the module is gone
            return ModuleSpec(name, self, is_package=True)
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.exec_module(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.setdefault("__getattr__", find_deprecated(module.__name__))


def install() -> None:
    """Add the finder, once."""
    if not any(isinstance(finder, _DeprecatedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _DeprecatedFinder())
