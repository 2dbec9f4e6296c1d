"""What a search gives back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from polysem.models.video import Moment
from polysem.search.backend import Mode
from polysem.search.relevance import Cut
from polysem.search.store import Item, Side


@dataclass(frozen=True)
class Result:
    """One item found. duplicates: ids of worse results that were folded into it. relevant: None where nobody asked.

    moment: of a video, the part that matches the query best; None for all else, and where the index keeps no frames.
    """

    rank: int
    id: str
    side: Side
    score: float
    path: str | None
    caption: str | None
    labels: Sequence[str]
    metadata: Mapping[str, Any]
    relevant: bool | None = None
    duplicates: Sequence[str] = ()
    moment: Moment | None = None

    @classmethod
    def of(cls, item: Item, score: float) -> Result:
        """An item as a result whose rank is not known yet."""
        return cls(0, item.id, item.side, score, item.path, item.caption, item.labels, item.metadata)


@dataclass(frozen=True)
class Results:
    """Items best first. `for result in results`; `results[0].id`; `results.as_dict()` for JSON.

    scored: how many items were compared in full. of: how many there are that pass the filter. seconds: of the search,
    without loading the model and encoding the query. unreadable: how many items could not be searched, because the
    file that holds them is damaged. cut: the relevance cut, if asked for. folded_among: where so many are duplicates
    that fewer than k were left, how many of the best were looked at; there may be more different ones behind them.
    """

    items: Sequence[Result]
    mode: Mode
    side: Side
    scored: int
    of: int
    seconds: float
    unreadable: int = 0
    cut: Cut | None = field(default=None)
    folded_among: int | None = None

    def __iter__(self) -> Iterator[Result]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> Result:
        return self.items[place]

    @property
    def ids(self) -> list[str]:
        return [item.id for item in self.items]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)
