"""What other packages add: parts, readers and protocols. Their entry points of the group `polysem.parts` name a module
that registers them, or a function without arguments that does."""

import logging
import threading
from collections.abc import Iterable
from importlib.metadata import entry_points

from polysem.errors import ConfigError, UnknownNameError, unknown

_lock = threading.RLock()
_problems: list[str] = []
_loaded = False


def load_plugins() -> None:
    """Import the entry points of installed packages, once in a process. What cannot be imported is named and left out:
    a broken package must not take the others with it."""
    global _loaded
    with _lock:
        if _loaded:
            return
        _loaded = True  # before loading: a plugin may itself look up parts
        for entry in entry_points(group="polysem.parts"):
            try:
                loaded = entry.load()
                if callable(loaded) and not isinstance(loaded, type):
                    loaded()
            except Exception as error:
                package = "an unknown package" if entry.dist is None else f"the package {entry.dist.name!r}"
                raised = f"its entry point {entry.name} = {entry.value} raised {type(error).__name__}: {error}"
                problem = f"The parts of {package} could not be loaded: {raised}. Update or uninstall it."
                _problems.append(problem)
                logging.getLogger("polysem").warning(problem)


def unknown_part(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that nobody registered; it adds which packages failed to load: one of them may have it."""
    return UnknownNameError(" ".join([str(unknown(kind, name, known)), *_problems]))


def require_free_name(kind: str, name: str, new: object, known: object) -> None:
    """Raise if `known`, which has the name, is another than `new`. The same may come again, from a reloaded module."""
    own, other = (f"{each.__module__}.{getattr(each, '__qualname__', each)}" for each in (new, known))
    if own != other:
        raise ConfigError(f"{own} cannot be the {kind} {name!r}: {other} has that name. Choose another.")
