"""What is wrong with a collection. A reader raises at the first error; a check collects them all: one code for both."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from polysem.data.collection import Skipped
from polysem.errors import InputError

Severity = Literal["error", "skip", "note"]


class DataError(InputError):
    """Data that must be mended before it is used."""


@dataclass(frozen=True)
class Problem:
    """kind: a short name to count by. where: the file, item or line.

    severity: an "error" stops a reader, a "skip" leaves the entry out, a "note" is worth knowing.
    """

    kind: str
    where: str
    message: str
    severity: Severity


class Problems:
    """Collects what a reader meets. Strict: the first error is raised."""

    def __init__(self, strict: bool = True) -> None:
        self.strict = strict
        self.found: list[Problem] = []

    def error(self, kind: str, where: object, message: str) -> None:
        if self.strict:
            raise DataError(f"{where}: {message}")
        self.found.append(Problem(kind, str(where), message, "error"))

    def skip(self, kind: str, where: object, message: str) -> None:
        self.found.append(Problem(kind, str(where), message, "skip"))

    def note(self, kind: str, where: object, message: str) -> None:
        self.found.append(Problem(kind, str(where), message, "note"))

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        return tuple(Skipped(p.where, p.message) for p in self.found if p.severity == "skip")

    def counts(self) -> dict[tuple[str, Severity], int]:
        return dict(Counter((p.kind, p.severity) for p in self.found))
