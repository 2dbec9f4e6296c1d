"""Search: an index of sets that is exact, crash-safe and incremental; `Index` is the way in."""

from polysem.search.filters import FilterError
from polysem.search.index import Index
from polysem.search.reports import AddReport, IndexStats, Verified
from polysem.search.results import Result, Results
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
    "Result",
    "Results",
    "SearchError",
    "Verified",
]
