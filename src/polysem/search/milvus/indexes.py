"""The kinds of index that Milvus can keep over the means, and how widely each searches for a number of candidates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

_LISTS = 1024


class Index(NamedTuple):
    """build: its parameters. search: the parameters that find `limit` candidates."""

    build: dict[str, Any]
    search: Callable[[int], dict[str, Any]]


def _wide(limit: int) -> int:
    """Twice the candidates: a graph walked no wider than what it must return misses many."""
    return max(128, min(2 * limit, 32_768))


INDEXES: dict[str, Index] = {
    "HNSW": Index({"M": 32, "efConstruction": 256}, lambda limit: {"ef": _wide(limit)}),
    "FLAT": Index({}, lambda _: {}),
    "IVF_SQ8": Index({"nlist": _LISTS}, lambda limit: {"nprobe": min(_LISTS, max(32, limit // 4))}),
    "DISKANN": Index({}, lambda limit: {"search_list": _wide(limit)}),
    "AUTOINDEX": Index({}, lambda _: {}),
}
