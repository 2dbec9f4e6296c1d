"""What an index returns: search results, and reports of adding, size and verification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from polysem._deprecated import renamed_attribute
from polysem.data.collection import Skipped
from polysem.models.video import Moment
from polysem.search.backend import Mode
from polysem.search.relevance import Cut
from polysem.search.store import Damage, Manifest, Side


@dataclass(frozen=True)
class SearchResult:
    """One item of a ranking. duplicates: ids of worse results that were folded into it. relevant: None if not asked.

    moment: of a video, the part that matches the query best; None for all else, and where the index keeps no frames.
    match: the probability that text and image match, of a model that is calibrated to tell (SigLIP); None of any other,
    and between two of a kind.
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
    match: float | None = None


@dataclass(frozen=True)
class SearchResults(Sequence[SearchResult]):
    """A ranking, best first. `for result in results`; `results[0].id`; `results.as_dict()` for JSON.

    scored: how many items were scored exactly. of: how many there are that pass the filter. seconds: of the search,
    without loading the model and encoding the query. unreadable: how many items could not be searched, because their
    segment is damaged. cut: the relevance cut, if asked for. folded_among: where so many are duplicates that fewer than
    k were left, how many of the best were looked at; there may be more different ones behind them. hybrid: whether the
    order, and the scores, are the reciprocal-rank fusion of vectors and words.
    """

    items: Sequence[SearchResult]
    mode: Mode
    side: Side
    scored: int
    of: int
    seconds: float
    unreadable: int = 0
    cut: Cut | None = None
    folded_among: int | None = None
    hybrid: bool = False

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, position: int) -> SearchResult:  # type: ignore[override]
        return self.items[position]

    @property
    def ids(self) -> list[str]:
        return [item.id for item in self.items]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


class IdConflict(NamedTuple):
    """there: the file that has the id, indexed or earlier in the same call. given: another file with it."""

    id: str
    there: str
    given: str
    source: str


@dataclass(frozen=True)
class AddReport:
    """What an `add` did. unchanged: items that were indexed already, as they are. skipped: what could not be read.

    remark: what the backend cannot store of them. reused: how many of those replaced were not encoded again, because
    only their path, labels or metadata changed. conflicts: those that took the id of another existing file.
    """

    new: int
    replaced: int
    unchanged: int
    removed: int
    skipped: Sequence[Skipped] = ()
    remark: str = ""
    reused: int = 0
    conflicts: Sequence[IdConflict] = ()
    clashes = renamed_attribute("clashes", "conflicts")


@dataclass(frozen=True)
class IndexStats:
    """How large an index is, what made it, and what was measured on it (`verify`).

    dead: rows with a tombstone, whose space `compact` frees. change: grows with everything added or rewritten.
    credits: whom to name where items are shown.
    """

    items: int
    by_side: dict[str, int]
    dead: int
    segments: int
    bytes: int | None
    bytes_per_item: float | None
    manifest: Manifest
    audit: dict[str, Any] | None
    modes: Sequence[Mode]
    changed_since_audit: bool = False
    change: int = 0
    credits: Sequence[str] = ()


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` found. lost: the ids of the items that a damage concerns, by the name of the damaged file.

    repaired: files that were damaged and have been rebuilt. remark: why there is no audit, or why it was not stored.
    """

    damage: Sequence[Damage]
    lost: dict[str, list[str]]
    audit: dict[str, Any] | None
    repaired: Sequence[str] = ()
    remark: str = ""
