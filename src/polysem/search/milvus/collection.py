"""The collection that holds an index: made, written, and read in pieces of bounded size."""

from __future__ import annotations

import json
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError
from polysem.progress import Progress
from polysem.search.milvus.connection import INDEXES, MeanIndexKind, MilvusConnection
from polysem.search.milvus.expressions import Expression
from polysem.search.milvus.rows import FACTS_LIMIT, TEXT_LIMIT, Row, make_key, set_fields
from polysem.search.store import Manifest, SearchError

MOST = 16_384
"""Milvus returns no more candidates, and no more rows, at once."""
_VALUES = "note"
PARTITIONS = ("image", "text", _VALUES)
_FIELDS = {"id", "mean", "added", "item", "facts", "ranges", "crc", "set_0"}
_READ_BYTES, _WRITE_BYTES = 16 << 20, 8 << 20
_READ_ROWS = 1000
_LOAD_SECONDS, _FLUSH_SECONDS = 300.0, 300.0
# Small segments are never indexed, they are scanned: without progress for this long, waiting ends.
_IDLE_SECONDS = 2.0


class MilvusCollection:
    """Rows by key, by page and by nearness of their means, and JSON values by name in a partition of their own."""

    def __init__(self, connection: MilvusConnection, manifest: Manifest | None = None) -> None:
        self.connection, self.address = connection, connection.address
        self._reading: dict[str, Any] = {"consistency_level": self.address.consistency}
        self.rows_at_once, self.set_fields, self._dim = _READ_ROWS, list[str](), 0
        if manifest is not None:
            self.set_manifest(manifest)

    def set_manifest(self, manifest: Manifest) -> None:
        """Size requests by how large a set is."""
        row = max(manifest.sets.values()) * manifest.dim * manifest.stored.itemsize * 4 // 3 + 4 * manifest.dim + 1024
        self.rows_at_once = max(1, min(_READ_ROWS, _READ_BYTES // row))
        self.set_fields, self._dim = set_fields(manifest), manifest.dim

    def exists(self) -> bool:
        """Whether it is there; an error if a collection of this name is another program's."""
        if not self._call("has_collection"):
            return False
        names = {field.get("name") for field in self._call("describe_collection").get("fields", ())}
        if not names >= _FIELDS:
            foreign = f"The collection {self.address.name!r} at {self.address.uri} is not an index of polysem."
            raise SearchError(f"{foreign} Choose another name at the end of the address.")
        return True

    def create(self, manifest: Manifest) -> None:
        """Create it, empty."""
        client, kinds = self.connection.pymilvus.MilvusClient, self.connection.pymilvus.DataType
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False, description="polysem index")
        schema.add_field("id", kinds.VARCHAR, is_primary=True, max_length=32)
        schema.add_field("mean", kinds.FLOAT_VECTOR, dim=manifest.dim)
        schema.add_field("added", kinds.INT64)
        schema.add_field("item", kinds.VARCHAR, max_length=TEXT_LIMIT)
        schema.add_field("facts", kinds.ARRAY, element_type=kinds.INT64, max_capacity=FACTS_LIMIT)
        schema.add_field("ranges", kinds.JSON)
        schema.add_field("crc", kinds.INT64)
        for name in set_fields(manifest):
            # Sets are read for a few candidates alone: servers that can (from 2.4 on) leave them on their disk.
            schema.add_field(name, kinds.VARCHAR, max_length=TEXT_LIMIT, mmap_enabled=True)
        kind = self.address.index
        index = client.prepare_index_params()
        index.add_index("mean", index_type=kind, metric_type="IP", params=INDEXES[kind].build)
        self._call("create_collection", doing="create", schema=schema, consistency_level="Strong")
        for name in PARTITIONS:
            self._call("create_partition", name, doing="create")
        self._call("create_index", index, doing="create", timeout=_LOAD_SECONDS)

    def drop(self) -> None:
        self._call("drop_collection", doing="delete")

    def load(self) -> None:
        """Let the server make it searchable. Returns at once where it is."""
        self._call("load_collection", doing="load", timeout=_LOAD_SECONDS)

    def write(self, partition: str, rows: Iterable[Row]) -> int:
        """Add rows, or replace those with the same keys; messages of bounded size. How many."""
        done, some, size = 0, list[Row](), 0
        for row in chain(rows, [None]):
            if row is not None:
                some.append(row)
                size += 256 + row["mean"].nbytes + sum(len(value) for value in row.values() if isinstance(value, str))
            if some and (row is None or size > _WRITE_BYTES):
                doing = f"write item {done + 1} and later ones to" if done else "write to"
                self._call("upsert", some, partition_name=partition, doing=doing)
                done, some, size = done + len(some), [], 0
        return done

    def delete(self, keys: Sequence[str]) -> None:
        for some in split_keys(keys, _READ_ROWS):
            self._call("delete", ids=some, doing="remove from")

    def fetch(self, keys: Iterable[str], fields: Sequence[str]) -> Iterator[Row]:
        """The rows with these keys, in no order."""
        for some in split_keys(keys, self.rows_at_once):
            named = ", ".join(f'"{key}"' for key in some)
            yield from self._call("query", filter=f"id in [{named}]", output_fields=list(fields), **self._reading)

    def pages(
        self, partition: str, where: Expression, fields: Sequence[str], after: str = "", most: int | None = None
    ) -> Iterator[list[Row]]:
        """All rows of a partition where the expression holds, ordered by key, from `after` on, a page at a time."""
        limit = self.rows_at_once if most is None else max(1, min(self.rows_at_once, most))
        while where is not False:
            found = self._call(
                "query",
                filter=_and_where(f'id > "{after}"', where),
                output_fields=list(fields),
                partition_names=[partition],
                limit=limit,
                # The rows with the lowest keys, in order. (What pymilvus' iterator adds, reduce_stop_for_best, may end
                # a page early, and a short page is the last one here.)
                iterator="True",
                **self._reading,
            )
            rows = sorted(found, key=lambda row: str(row["id"]))
            if rows:
                yield rows
            if len(rows) < limit:
                return
            after = rows[-1]["id"]

    def nearest(self, partition: str, mean: NDArray[np.float32], limit: int, where: Expression) -> list[str]:
        """The keys of the rows whose means have the largest inner product with this one."""
        if where is False:
            return []
        found = self._call(
            "search",
            data=[mean],
            anns_field="mean",
            limit=limit,
            filter=_and_where("", where),
            output_fields=["added"],
            partition_names=[partition],
            search_params={"metric_type": "IP", "params": self._index_kind.search(limit)},
            **self._reading,
        )
        return [str(hit["id"]) for hit in found[0]]

    def count(self, partition: str, where: Expression) -> int:
        if where is False:
            return 0
        fields = {"output_fields": ["count(*)"], "partition_names": [partition], **self._reading}
        (found,) = self._call("query", filter=_and_where('id > ""', where), **fields)
        return int(found["count(*)"])

    def read_value(self, name: str) -> Any:
        """The JSON value stored under this name; None if there is none."""
        for row in self.fetch([make_key(_VALUES, name)], ["id", "item"]):
            return json.loads(zlib.decompress(b64decode(row["item"])))
        return None

    def write_value(self, name: str, value: Any) -> None:
        text = b64encode(zlib.compress(json.dumps(value).encode())).decode()
        if len(text) > TEXT_LIMIT:
            raise InputError(
                f"The value {name!r} has {len(text):,} bytes, and Milvus holds {TEXT_LIMIT:,}. Shorten it."
            )
        row = {"id": make_key(_VALUES, name), "item": text, "facts": [0], "ranges": {}, "crc": 0}
        row |= {"mean": np.zeros(self._dim, np.float32), "added": time.time_ns(), **dict.fromkeys(self.set_fields, "")}
        self.write(_VALUES, [row])

    def wait_until_indexed(self, progress: Progress | None) -> None:
        """Seal what was written and wait while the server indexes it. Searching works meanwhile."""
        self._call("flush", doing="write to", timeout=_FLUSH_SECONDS)
        before, since = -1, time.monotonic()
        while True:
            state = self._call("describe_index", "mean")
            done, of = int(state.get("indexed_rows", 0)), int(state.get("total_rows", 0))
            if progress is not None:
                progress("index", done, of)
            if done != before:
                before, since = done, time.monotonic()
            if int(state.get("pending_index_rows", 0)) == 0 or time.monotonic() - since > _IDLE_SECONDS:
                return
            time.sleep(0.2)

    def compact(self) -> None:
        """Ask the server to give back the space of removed rows; it does so in its own time."""
        self._call("flush", doing="compact", timeout=_FLUSH_SECONDS)
        self._call("compact", doing="compact")

    @cached_property
    def _index_kind(self) -> MeanIndexKind:
        return INDEXES.get(str(self._call("describe_index", "mean").get("index_type")), INDEXES["AUTOINDEX"])

    def _call(self, method: str, *arguments: Any, **more: Any) -> Any:
        return self.connection.call(method, self.address.name, *arguments, **more)


def _and_where(first: str, where: Expression) -> str:
    return " and ".join(each for each in (first, where) if isinstance(each, str) and each)


def split_keys(keys: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(keys)
    while some := list(islice(rest, size)):
        yield some
