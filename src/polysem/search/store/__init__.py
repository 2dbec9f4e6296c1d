"""An index on disk: who the items are in SQLite, their vectors in files that never change.

    index.sqlite             the manifest, the items, and which rows of which segment count (write-ahead log beside it)
    segment-NNNNNN.seg       the vectors of one batch of items, checksummed, written once
    writer.lock              held by the one process that writes

An item exists once the database has committed it, and its vectors are safe on disk before that. So whatever interrupts
a writer leaves an index that reads as if the writer had stopped after its last finished operation. The write-ahead log
needs a local disk: an index on a network file system can be copied from there, not used there.
"""

from polysem.search.store.entries import Batch, Entry, Side
from polysem.search.store.errors import IndexBusyError, SearchError
from polysem.search.store.manifest import Manifest
from polysem.search.store.rows import Item, Stats, View
from polysem.search.store.segments import Damage
from polysem.search.store.snapshot import Snapshot
from polysem.search.store.store import Added, Compacted, Store

__all__ = [
    "Added",
    "Batch",
    "Compacted",
    "Damage",
    "Entry",
    "IndexBusyError",
    "Item",
    "Manifest",
    "SearchError",
    "Side",
    "Snapshot",
    "Stats",
    "Store",
    "View",
]
