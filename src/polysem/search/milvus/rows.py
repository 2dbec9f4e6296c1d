"""An item as a row of a Milvus collection, and back."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError
from polysem.search.engine.scoring import mean_vectors
from polysem.search.milvus.expressions import describe
from polysem.search.store import IndexedItem, Manifest, Side, VectorBatch
from polysem.search.store.entries import as_rows

TEXT_LIMIT = 65_535
"""Bytes of a VARCHAR or JSON value."""
FACTS_LIMIT = 4096
"""Elements of an ARRAY."""
# Of base64, four signs are three bytes.
_PART = TEXT_LIMIT // 4 * 4
_MOST_PARTS = 48
Row = dict[str, Any]

ITEM_FIELDS = ("id", "added", "item")
_CONTENT = ("id", "path", "caption", "metadata", "labels", "hash")


def make_key(side: str, name: str) -> str:
    """The primary key of an item or stored value: of one length whatever the id, and evenly distributed."""
    return blake2b(f"{side}\0{name}".encode(), digest_size=16).hexdigest()


def set_fields(manifest: Manifest) -> list[str]:
    """The names of the VARCHAR fields that hold a set."""
    size = max(manifest.sets.values()) * manifest.dim * manifest.stored.itemsize
    parts = -(-(-(-size // 3) * 4) // _PART)
    if parts > _MOST_PARTS:
        raise InputError(f"A set of {size:,} bytes is too large for Milvus. Keep the index in a folder, or in float16.")
    return [f"set_{part}" for part in range(parts)]


def encode_entries(batch: VectorBatch) -> list[Row]:
    """The part of each row that is made from its entry, or an error that names the entry Milvus cannot hold."""
    encoded = []
    for name, path, caption, metadata, labels, digest in as_rows(batch.entries):
        values = (name, path, caption, json.loads(metadata), json.loads(labels), digest)
        content = dict(zip(_CONTENT, values, strict=True))
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        facts, ranges = describe(to_filter_item(content, batch.side))
        for size, what, most in (
            (len(text.encode()), "bytes of caption, labels and metadata", TEXT_LIMIT),
            (len(json.dumps(ranges)), "bytes of values to filter by", TEXT_LIMIT),
            (len(facts), "values to filter by", FACTS_LIMIT),
        ):
            if size > most:
                raise InputError(
                    f"Item {name!r:.80} has {size:,} {what}, and Milvus holds {most:,}. Shorten them, leave some out, "
                    "or keep the index in a folder."
                )
        encoded.append({"id": make_key(batch.side, name), "item": text, "facts": facts, "ranges": ranges})
    return encoded


def encode_rows(batch: VectorBatch, entries: Sequence[Row], manifest: Manifest, added: int) -> Iterator[Row]:
    """The rows of a checked batch, one at a time; `entries` as `encode_entries` returned them."""
    names = set_fields(manifest)
    for number, (entry, own) in enumerate(zip(entries, batch.vectors, strict=True)):
        stored = np.ascontiguousarray(own).tobytes()
        encoded = b64encode(stored).decode()
        parts = {field: encoded[part * _PART : (part + 1) * _PART] for part, field in enumerate(names)}
        yield {**entry, "mean": mean_vectors(own), "added": added + number, "crc": zlib.crc32(stored), **parts}


def to_filter_item(content: Mapping[str, Any], side: str) -> dict[str, Any]:
    """An item in the form that `filters.matches` takes."""
    return {**content, "label": content["labels"], "side": side}


def read_content(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Id, path, caption, metadata, labels and hash of an item; None if they cannot be read."""
    try:
        content = json.loads(row["item"])
    except ValueError:
        return None
    return content if isinstance(content, dict) and content.keys() >= set(_CONTENT) else None


def read_item(row: Mapping[str, Any], side: Side) -> IndexedItem | None:
    """The item of a row, None if it cannot be read. Its position is -1: Milvus has no positions."""
    if (content := read_content(row)) is None:
        return None
    id_, path, caption, metadata, labels, digest = (content[name] for name in _CONTENT)
    return IndexedItem(id_, side, -1, path, caption, metadata, tuple(labels), digest, row["added"] / 1e9)


def read_set(row: Mapping[str, Any], side: Side, manifest: Manifest) -> NDArray[Any] | None:
    """(K, D) set of a row; None if it cannot be read."""
    try:
        stored = b64decode("".join(row[field] for field in set_fields(manifest)), validate=True)
        return np.frombuffer(stored, manifest.stored).reshape(manifest.sets[side], manifest.dim)
    except ValueError:  # not base64, or of something else
        return None


def find_damage(row: Mapping[str, Any], side: Side, manifest: Manifest) -> str | None:
    """How a row is damaged; None if it is not."""
    if (content := read_content(row)) is None:
        return f"the row {row['id']} holds no item"
    name = f"{content['id']!r:.80}"
    if make_key(side, content["id"]) != row["id"]:
        return f"item {name} is under the key of another"
    own = read_set(row, side, manifest)
    if own is None or zlib.crc32(own.tobytes()) != row["crc"]:
        return f"the vectors of item {name} have changed"
    if not np.allclose(mean_vectors(own), row["mean"], rtol=1e-5, atol=1e-6):
        return f"the mean of item {name} is not that of its vectors"
    if describe(to_filter_item(content, side)) != (sorted(row["facts"]), row["ranges"]):
        return f"what filters ask of item {name} has changed"
    return None
