"""What an index holds: its manifest, its items, and the validation of what is added."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from polysem.data.collection import Side as Side
from polysem.errors import ConfigError, InputError, kind
from polysem.search.store.errors import SearchError

VERSION = 1
Dtype = Literal["float16", "float32"]
SIDES: tuple[Side, ...] = get_args(Side)
_BLOCK = 4096
_SHARED = ("fingerprint", "sets", "dim", "similarity", "preprocessing")
# Less than what a search accepts (`engine.engine`), so that rounding to half precision makes no vector unacceptable.
_NORM_ERROR = 0.009
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class Manifest:
    """What every vector of an index has in common.

    fingerprint: of the model's weights and preprocessing, which must match. `model` (where it came from), `similarity`
    and `preprocessing` are for people to read.
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
            given = f"sets={dict(self.sets)!r} and dim={self.dim!r}"
            raise ConfigError(f"An index needs e.g. sets={{'image': 4, 'text': 4}} and dim=256, got {given}.")
        # As they come back from the database, so that a manifest equals itself read again.
        for name in ("sets", "similarity", "preprocessing"):
            object.__setattr__(self, name, json.loads(json.dumps(dict(getattr(self, name)))))

    @property
    def stored(self) -> np.dtype[Any]:
        """The type of the values on disk: little-endian on every machine."""
        return np.dtype(self.dtype).newbyteorder("<")

    def differences(self, other: Manifest) -> list[str]:
        """One line for each field that keeps the vectors of `other` out of this index; empty if they may share it."""
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in _SHARED)
        return [f"{name}: {own!r:.80} in the index, {its!r:.80} now" for name, own, its in pairs if own != its]

    def as_rows(self) -> list[tuple[str, str]]:
        """Name and JSON value of each field, for the database."""
        return [(name, json.dumps(value)) for name, value in asdict(self).items()]

    @classmethod
    def from_rows(cls, rows: Mapping[str, str]) -> Manifest:
        """The manifest that `as_rows` wrote."""
        version = json.loads(rows.get("version", "null"))
        if version != VERSION:
            remedy = "Use the polysem that made it, or build the index again."
            raise SearchError(f"The index is of version {version}, this polysem reads {VERSION}. {remedy}")
        return cls(**{each.name: json.loads(rows[each.name]) for each in fields(cls)})


class IndexedItem(NamedTuple):
    """An item as indexed. position: of its vectors on its side; -1 if its segment cannot be read, and in Milvus."""

    id: str
    side: Side
    position: int
    path: str | None
    caption: str | None
    metadata: dict[str, Any]
    labels: tuple[str, ...]
    hash: str | None
    added: float


@dataclass(frozen=True)
class Entry:
    """An item to add.

    id: the user's own, unique on its side. metadata: JSON values to filter by. hash: of all that is known of
    the item, so that an unchanged one need not be added again.
    """

    id: str
    path: str | None = None
    caption: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    labels: Sequence[str] = ()
    hash: str | None = None


@dataclass(frozen=True)
class VectorBatch:
    """Items of one side with their vectors (n, K, D), and further arrays of n rows to store beside them.

    frames: of videos, for each item the sets (m, K, D) of evenly spaced frames, or None; empty where no item has any.
    """

    side: Side
    entries: Sequence[Entry]
    vectors: NDArray[Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    frames: Sequence[NDArray[Any] | None] = ()


def validate_batches(batches: Iterable[VectorBatch], manifest: Manifest) -> list[VectorBatch]:
    """The batches that hold items, with their vectors as they are stored; an error names the first bad item."""
    valid = [_validate(batch, manifest) for batch in batches if batch.entries]
    for side in SIDES:
        ids = [entry.id for batch in valid if batch.side == side for entry in batch.entries]
        if len(set(ids)) != len(ids):
            raise InputError(f"Two batches of the side {side!r} hold the same id. Ids name items: make them unique.")
    return valid


def _validate(batch: VectorBatch, manifest: Manifest) -> VectorBatch:
    if batch.side not in manifest.sets:
        raise InputError(f"This index holds {' and '.join(manifest.sets)}, got the side {batch.side!r}.")
    vectors = np.asarray(batch.vectors)
    wanted = (len(batch.entries), manifest.sets[batch.side], manifest.dim)
    if vectors.shape != wanted or not np.issubdtype(vectors.dtype, np.floating):
        raise InputError(f"{batch.side}s need vectors of shape {wanted}, got {kind(vectors)}. Use the index's model.")
    for name, array in batch.arrays.items():
        if name == "vectors" or len(array) != len(batch.entries):
            raise InputError(f"Array {name!r} needs a row for each of {len(batch.entries)} items, got {kind(array)}.")
    repeated = next((key for key, count in Counter(entry.id for entry in batch.entries).items() if count > 1), None)
    if repeated is not None:
        raise InputError(f"Item {repeated!r} is given twice. Ids name items: make them unique.")
    _check_frames(batch, manifest)
    return replace(batch, vectors=_as_stored(vectors, batch.entries, manifest))


def _check_frames(batch: VectorBatch, manifest: Manifest) -> None:
    if batch.frames and len(batch.frames) != len(batch.entries):
        raise InputError(f"{len(batch.entries)} items need a set of frames (or None) each, got {len(batch.frames)}.")
    for entry, frames in zip(batch.entries, batch.frames, strict=False):
        if frames is None:
            continue
        given, (K, D) = np.asarray(frames), (manifest.sets[batch.side], manifest.dim)
        if given.ndim != 3 or not len(given) or given.shape[1:] != (K, D) or given.dtype.kind != "f":
            raise InputError(f"Item {entry.id!r:.80}: its frames are sets (frames, {K}, {D}), got {kind(given)}.")
        if not np.isfinite(given).all() or np.abs(given).max() > 2:
            problem = "its frames hold NaN, infinity or vectors that are not unit vectors"
            raise InputError(f"Item {entry.id!r:.80}: {problem}; nothing of the batch was added. Check its file.")


def _as_stored(vectors: NDArray[Any], entries: Sequence[Entry], manifest: Manifest) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        stored = vectors.astype(manifest.stored, copy=False)
    for start in range(0, len(stored), _BLOCK):  # in blocks: a check must not double the memory
        block = stored[start : start + _BLOCK]
        finite = np.isfinite(block).all(axis=(1, 2))
        usable = finite & (block != 0).any(axis=2).all(axis=1)
        if usable.all():
            continue
        row = int(np.argmin(usable))
        problem = "a vector of zeros" if finite[row] else f"NaN, infinity or more than {manifest.dtype} holds"
        remedy = "nothing of the batch was added. Check its file and the model's weights, or leave it out"
        raise InputError(f"Item {entries[start + row].id!r} has {problem}; {remedy}.")
    return stored


def check_units(batch: VectorBatch) -> None:
    """Refuse vectors that are not unit vectors, which scores and bounds rely on; the error names the first item.

    Wrong shapes, zeros and what is not finite are left to `validate_batches`, which says more about them.
    """
    vectors = np.asarray(batch.vectors)
    if vectors.ndim != 3 or len(vectors) != len(batch.entries) or vectors.dtype.kind != "f":
        return
    for start in range(0, len(vectors), _BLOCK):
        block = vectors[start : start + _BLOCK]
        norms = np.sqrt(np.einsum("nkd,nkd->nk", block, block, dtype=np.float64))
        wrong = np.isfinite(norms) & (norms > 0) & (np.abs(norms - 1) > _NORM_ERROR)
        if wrong.any():
            row, element = np.argwhere(wrong)[0].tolist()
            name = f"Vector {element} of item {batch.entries[start + row].id!r:.80}"
            remedy = "unit vectors are needed, and nothing of the batch was added. Normalise them first"
            raise InputError(f"{name} has norm {norms[row, element]:.4g}; {remedy}.")


def as_rows(entries: Iterable[Entry]) -> Iterator[tuple[str, str | None, str | None, str, str, str | None]]:
    """(id, path, caption, metadata, labels, hash) of each entry as the database keeps them."""
    for entry in entries:
        key = _check_text("id", entry.id, entry.id)
        if not key:
            raise InputError("An item has an empty id. Give every item an id of at least one character.")
        if isinstance(entry.labels, str):
            raise InputError(f"Item {key!r}: labels are a list of texts, got the text {entry.labels!r}.")
        labels = [_check_text("label", label, key) for label in entry.labels]
        given = (("path", entry.path), ("caption", entry.caption), ("hash", entry.hash))
        path, caption, digest = (None if text is None else _check_text(name, text, key) for name, text in given)
        yield key, path, caption, _encode_metadata(entry.metadata, key), _JSON.encode(labels), digest


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded as UTF-8: names of files in another encoding cannot."""
    return text.encode(errors="ignore").decode() == text


def _check_text(what: str, value: object, key: object) -> str:
    if not isinstance(value, str):
        raise InputError(f"Item {key!r}: its {what} must be a text, got {value!r:.80} ({kind(value)}).")
    if "\0" in value:
        raise InputError(f"Item {key!r}: its {what} holds the character NUL, which SQLite cannot compare. Remove it.")
    if not is_unicode(value):
        remedy = "Rename the file, or give the item another text."
        raise InputError(f"Item {key!r}: its {what} {value!r:.80} is not valid Unicode. {remedy}")
    return value


def _encode_metadata(value: Mapping[str, Any], key: str) -> str:
    try:
        _check_json(value, key)
        return _JSON.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"Item {key!r}: its metadata must be JSON ({error}).") from None


def _check_json(value: Any, key: str) -> None:
    """Refuse what JSON in SQLite would change: a filter could never match such a value."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str) or not name or any(sign in '"\\' or sign < " " for sign in name):
                rule = "must be a text without quotation marks, backslashes and control characters"
                raise InputError(f"Item {key!r}: the metadata name {name!r} {rule}.")
            _check_text("metadata", name, key)
            _check_json(inner, key)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_json(inner, key)
    elif isinstance(value, str):
        _check_text("metadata", value, key)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InputError(f"Item {key!r}: the metadata number {value} has more than 64 bits. Give it as a text.")
