"""The best items of a search as results, as they are or with near-duplicates folded into the best of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from polysem.search.backend import Ranked
from polysem.search.duplicates import groups
from polysem.search.results import Result
from polysem.search.store import Side

EACH = 4
"""Results looked at for each one wanted, where duplicates are folded."""
MOST = 1 << 13
"""Results looked at in the end, or as many as are wanted: of an index of copies, not all are fetched."""

Look = Callable[[int], Ranked]
"""How many -> the best of a search."""


@dataclass(frozen=True)
class Found:
    """Results best first, without ranks. stopped: how many of the best were looked at, where more might have helped."""

    results: list[Result]
    ranked: Ranked
    sets: NDArray[Any]
    stopped: int | None = None

    @property
    def scored(self) -> int:
        """How many items were compared in full, without the one that the query is."""
        return self.ranked.scored - (len(self.ranked.items) - len(self.sets))


def plain(look: Look, k: int, but: tuple[Side, str] | None) -> Found:
    """The k best but one: the item that the query is."""
    ranked = look(k)
    others = [place for place, each in enumerate(ranked.items) if (each.side, each.id) != but]
    results = [Result.of(ranked.items[place], float(ranked.scores[place])) for place in others]
    return Found(results, ranked, ranked.sets[others])


def folded(look: Look, k: int, of: int, but: tuple[Side, str] | None, alone: int, threshold: float) -> Found:
    """Those of the best that are different, at least k of them if there are so many among the first `MOST`.

    of: how many items there are to look at. alone: 1 if `but` is one of them, else 0.
    """
    most = max(MOST, k) + alone
    wanted = min(EACH * k + alone, most)
    while True:
        asked = min(wanted, max(of, 1))
        found = plain(look, asked, but)
        results = _fold(found.results, found.sets, threshold)
        enough = len(results) >= k or asked >= of or len(found.ranked.items) < asked
        if enough or wanted == most:
            return replace(found, results=results, stopped=None if enough else asked)
        wanted = min(2 * wanted, most)  # so many copies that too few different ones are left


def _fold(found: Sequence[Result], sets: NDArray[Any], threshold: float) -> list[Result]:
    """The best of each group of near-duplicates, with the others' ids."""
    copies: dict[int, list[str]] = {}
    for place, (result, leader) in enumerate(zip(found, groups(sets, threshold), strict=True)):
        own = copies.setdefault(leader, [])
        if place != leader:
            own.append(result.id)
    return [replace(found[leader], duplicates=tuple(own)) for leader, own in copies.items()]
