"""The manifest: which model made the vectors of an index, and how they are compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

import numpy as np

from polysem.errors import ConfigError
from polysem.search.store.errors import SearchError

VERSION = 1
Dtype = Literal["float16", "float32"]


@dataclass(frozen=True)
class Manifest:
    """What every vector of an index has in common.

    fingerprint: of the model's weights and preprocessing. It decides; `model` (where it came from), `similarity` and
    `preprocessing` explain.
    sets: vectors per item for each side, e.g. {"image": 4, "text": 4}. dim: width of a vector.
    """

    fingerprint: str
    sets: Mapping[str, int]
    dim: int
    similarity: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    dtype: Dtype = "float32"
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.dtype not in get_args(Dtype):
            raise ConfigError(f"Vectors are stored as {' or '.join(get_args(Dtype))}, not as {self.dtype!r}.")
        if not self.sets or not set(self.sets) <= {"image", "text"} or min(self.sets.values()) < 1 or self.dim < 1:
            raise ConfigError(
                "An index needs the number of vectors per item of its sides, e.g. sets={'image': 4, 'text': 4}, and "
                f"their width, got sets={dict(self.sets)!r} and dim={self.dim!r}."
            )
        # As they come back from the database, so that a manifest equals itself read again.
        for name in ("sets", "similarity", "preprocessing"):
            object.__setattr__(self, name, json.loads(json.dumps(dict(getattr(self, name)))))

    @property
    def stored(self) -> np.dtype[Any]:
        """The type of the values on disk: little-endian on every machine."""
        return np.dtype(self.dtype).newbyteorder("<")

    def differences(self, other: Manifest) -> list[str]:
        """One line for each thing that makes the vectors of `other` another kind; empty if they may share an index."""
        names = ("fingerprint", "sets", "dim", "similarity", "preprocessing")
        return [
            f"{name}: {getattr(self, name)!r:.80} in the index, {getattr(other, name)!r:.80} now"
            for name in names
            if getattr(self, name) != getattr(other, name)
        ]

    def as_rows(self) -> list[tuple[str, str]]:
        """Name and JSON value of each field, for the database."""
        return [(name, json.dumps(value)) for name, value in asdict(self).items()]

    @classmethod
    def from_rows(cls, rows: Mapping[str, str]) -> Manifest:
        """The manifest that `as_rows` wrote."""
        version = json.loads(rows.get("version", "null"))
        if version != VERSION:
            raise SearchError(
                f"The index is of version {version}, this polysem reads {VERSION}. Use the polysem that made it, or "
                "build the index again."
            )
        return cls(**{name.name: json.loads(rows[name.name]) for name in fields(cls)})
