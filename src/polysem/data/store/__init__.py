"""Local features on disk: extracted once, read many times, never loaded whole.

    manifest.json            what the features are: encoder, fingerprint, preprocessing, dtype, width
    shard-RRR-NNNNN.bin      the raw values that rank RRR wrote, item after item, little-endian
    journal-RRR.jsonl        what of them counts: one checksummed line for each batch

A batch exists once its line is in the journal, and its line is written after its values are safe on disk. So whatever
interrupts a writer leaves a store that reads as if the writer had stopped at its last commit.
"""

from polysem.data.store.layout import FeatureManifest, StoreError
from polysem.data.store.reader import FeatureStore
from polysem.data.store.writer import StoreEntry, StoreWriter

__all__ = ["FeatureManifest", "FeatureStore", "StoreEntry", "StoreError", "StoreWriter"]
