"""Search: an index of sets that is exact, crash-safe and incremental; start with `Index`."""

from polysem.search.filters import FilterError
from polysem.search.index import Index
from polysem.search.results import AddReport, IndexStats, SearchResult, SearchResults, VerifyReport
from polysem.search.store import Entry, IndexBusyError, Manifest, SearchError, VectorBatch

__all__ = [
    "AddReport",
    "Entry",
    "FilterError",
    "Index",
    "IndexBusyError",
    "IndexStats",
    "Manifest",
    "SearchError",
    "SearchResult",
    "SearchResults",
    "VectorBatch",
    "VerifyReport",
]
