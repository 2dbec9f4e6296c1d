"""An index in Milvus, for what outgrows one machine. Needs the extra `milvus`: pip install 'polysem[milvus]'.

    milvus+http://host:19530/NAME        a server; https too. POLYSEM_MILVUS_TOKEN, or user:password@ before the host
    milvus+lite:folder/FILE.db/NAME      milvus-lite: a file on this machine, used by one process at a time
    ...?index=HNSW                       how `create` indexes the means: HNSW, FLAT, IVF_SQ8, DISKANN or AUTOINDEX
    ...?consistency=Strong               what reading may miss: nothing. Bounded answers sooner and may miss the newest

An index is one collection. A row is an item: the mean of its set as the vector that Milvus searches, the set itself
(base64, checksummed), its id, caption and metadata, and what filters test (`facts`). Images, texts and stored values
have a partition each; the manifest is such a value, so the address is all that another machine needs.

The fast mode takes candidates by the inner product of means, and scores their sets exactly. That product never exceeds
the smooth-Chamfer score by more than rounding (Jensen), but a high score may hide behind a low product: recall is
measured, not certain. The exact mode reads every item that passes the filter.

What holds, and what does not. Milvus has no transactions, and no lock for writers:
- An item is one row, so a reader sees it whole, as it was or as it is. Bad input is found before anything is written.
- Rows are sent in messages of some megabytes. An `add` that is interrupted between two of them has added its first
  items; to run it again completes it.
- Of two writers of the same id the later wins. Order of adding is the order of the writers' clocks.
- With consistency Strong, the default, a search sees every write that has returned, of whichever process.
"""

from polysem.search.milvus.backend import MilvusBackend
from polysem.search.milvus.connection import Address

__all__ = ["Address", "MilvusBackend"]
