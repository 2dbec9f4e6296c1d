"""An index on disk: items in SQLite, their vectors in immutable segment files.

    index.sqlite             the manifest, the items, and the tombstones of each segment (write-ahead log beside it)
    segment-NNNNNN.seg       the vectors of one batch of items, checksummed, written once
    writer.lock              held by the one process that writes

An item exists once the database has committed it, and its vectors are safe on disk before that. So whatever interrupts
a writer leaves an index that reads as if the writer had stopped after its last finished operation. The write-ahead log
needs a local disk: an index on a network file system can be copied from there, not used there.
"""

from polysem.search.store.entries import Entry, IndexedItem, Manifest, Side, VectorBatch
from polysem.search.store.errors import IndexBusyError, SearchError
from polysem.search.store.segments import Damage, Segment
from polysem.search.store.snapshot import SegmentView, Snapshot, Stats
from polysem.search.store.store import Store
from polysem.search.store.writer import AddCounts, CompactReport

__all__ = [
    "AddCounts",
    "CompactReport",
    "Damage",
    "Entry",
    "IndexBusyError",
    "IndexedItem",
    "Manifest",
    "SearchError",
    "Segment",
    "SegmentView",
    "Side",
    "Snapshot",
    "Stats",
    "Store",
    "VectorBatch",
]
