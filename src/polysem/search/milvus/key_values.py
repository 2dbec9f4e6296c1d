"""Notes beside an index: JSON values by name, as rows of their own partition. The manifest is one."""

from __future__ import annotations

import json
import time
import zlib
from base64 import b64decode, b64encode
from typing import Any

import numpy as np

from polysem.errors import InputError
from polysem.search.milvus import rows
from polysem.search.milvus.collection import Collection

_PARTITION = "note"


class Notes:
    def __init__(self, collection: Collection, dim: int) -> None:
        self._collection, self._dim = collection, dim

    @staticmethod
    def read(collection: Collection, name: str) -> Any:
        """The value under this name; None if there is none."""
        for row in collection.fetch([rows.key(_PARTITION, name)], ["id", "item"]):
            return json.loads(zlib.decompress(b64decode(row["item"])))
        return None

    def write(self, name: str, value: Any) -> None:
        text = b64encode(zlib.compress(json.dumps(value).encode())).decode()
        if len(text) > rows.TEXT_LIMIT:
            raise InputError(
                f"The note {name!r} takes {len(text):,} bytes, and Milvus holds {rows.TEXT_LIMIT:,}. Shorten it."
            )
        row = {
            "id": rows.key(_PARTITION, name),
            "mean": np.zeros(self._dim, np.float32),
            "added": time.time_ns(),
            "item": text,
            "facts": [0],
            "ranges": {},
            "crc": 0,
            **dict.fromkeys(self._collection.set_fields, ""),
        }
        self._collection.write(_PARTITION, [row])
