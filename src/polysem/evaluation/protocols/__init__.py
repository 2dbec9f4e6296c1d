"""Protocols: which gallery is searched and what counts as a right answer. Each stamps its name on its numbers.

Every module of this folder is imported here, and a protocol registers itself: a new one is one new file.
"""

from importlib import import_module
from pkgutil import iter_modules

from polysem.evaluation.protocols.base import (
    EvaluationTask,
    ModelScores,
    Protocol,
    ProtocolResult,
    catalogue,
    describe,
    find,
    names,
    register,
)

__all__ = [
    "EvaluationTask",
    "ModelScores",
    "Protocol",
    "ProtocolResult",
    "catalogue",
    "describe",
    "find",
    "names",
    "register",
]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
