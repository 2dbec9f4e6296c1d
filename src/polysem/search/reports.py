"""What is told about an index: what an `add` did, how large it is, and whether it is whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polysem.data.collection import Skipped
from polysem.search.backend import Mode
from polysem.search.id_conflicts import Clash
from polysem.search.store import Damage, Manifest


@dataclass(frozen=True)
class AddReport:
    """What an `add` did. unchanged: items that were there already, as they are now. skipped: what could not be read.

    remark: what the place that keeps the index cannot keep of them. reused: how many of those replaced were not encoded
    again, because their content is the same and only their place, labels or metadata are not. clashes: those that took
    the id of a different picture, whose file is still there.
    """

    new: int
    replaced: int
    unchanged: int
    removed: int
    skipped: Sequence[Skipped] = ()
    remark: str = ""
    reused: int = 0
    clashes: Sequence[Clash] = ()


@dataclass(frozen=True)
class IndexStats:
    """How large an index is, what made it, and what was measured on it (`verify`).

    change: another number after everything that was added or rewritten. credits: whom to name where items are shown.
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
class Verified:
    """What `verify` found. lost: the ids of the items that a damage concerns, by the name of the damaged file.

    repaired: files that were damaged and have been made again. remark: why there is no audit, or why it was not kept.
    """

    damage: Sequence[Damage]
    lost: dict[str, list[str]]
    audit: dict[str, Any] | None
    repaired: Sequence[str] = ()
    remark: str = ""
