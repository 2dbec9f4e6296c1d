"""One search of the index, on a worker's thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from polysem.server.errors import ApiError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from polysem.search import Index, Result, Results
    from polysem.search.backend import Mode
    from polysem.search.relevance import Cut
    from polysem.search.store import Side


@dataclass(frozen=True)
class Query:
    """What to search for: `vectors`, or an `item` (on its `side`); and how."""

    vectors: NDArray[np.float32] | None
    item: str | None
    side: Side | None
    find: Side
    k: int
    offset: int
    filter: str | None
    mode: Mode | None
    relevant: bool
    dedupe: bool


@dataclass(frozen=True)
class Answer:
    items: Sequence[Result]
    cut: Cut | None
    mode: Mode
    scored: int
    of: int
    unreadable: int


def found(index: Index, query: Query) -> Answer:
    """A page of results: those from `offset` on."""
    if query.find not in index.manifest.sets:
        raise ApiError(400, f"This index holds no {query.find}s.")
    wanted: dict[str, Any] = {
        "find": query.find,
        "k": query.offset + query.k,
        "where": query.filter,
        "mode": query.mode,
        "relevant": "mark" if query.relevant else False,
        "dedupe": query.dedupe,
    }
    results = index.search(vectors=query.vectors, **wanted) if query.item is None else _like(index, query, wanted)
    return Answer(
        results.items[query.offset :], results.cut, results.mode, results.scored, results.of, results.unreadable
    )


def _like(index: Index, query: Query, wanted: dict[str, Any]) -> Results:
    """What is like an item, without the item itself."""
    key = str(query.item)
    known = index.items([key], query.side)
    if not known:
        raise ApiError(404, "The index holds no such item.")
    if known[0].position < 0:
        raise ApiError(409, "The file that holds this item's vectors is damaged.")
    if len(index.items([key])) == 1:
        return index.search(item=key, **wanted)
    # The same id on both sides: `item=` would take the image.
    side = known[0].side
    results = index.search(vectors=index.vectors(side, [key])[0], **{**wanted, "k": wanted["k"] + 1})
    others = [each for each in results if (each.side, each.id) != (side, key)][: wanted["k"]]
    items = [replace(each, rank=rank) for rank, each in enumerate(others, start=1)]
    return replace(results, items=items, of=results.of - int(query.find == side))
