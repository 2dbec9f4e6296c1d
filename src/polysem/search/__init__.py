"""Search: an index of sets that is exact, crash-safe and incremental; start with `Index`."""

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
