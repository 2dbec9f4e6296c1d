"""Search: an index of sets that is exact, crash-safe and incremental; start with `Index`."""

from typing import TYPE_CHECKING

from polysem._deprecated import find_deprecated
from polysem.search.filters import FilterError
from polysem.search.index import Index
from polysem.search.results import AddReport, IndexStats, SearchResult, SearchResults, Verified
from polysem.search.store import Batch, Entry, IndexBusyError, Manifest, SearchError

__all__ = [
    "AddReport",
    "Batch",
    "Entry",
    "FilterError",
    "Index",
    "IndexBusyError",
    "IndexStats",
    "Manifest",
    "SearchError",
    "SearchResult",
    "SearchResults",
    "Verified",
]

if not TYPE_CHECKING:
    __getattr__ = find_deprecated(__name__)
