"""Segments: arrays of one batch of items in one file, checksummed, memory-mapped and never changed.

    head          magic, version, where the description is and its checksum
    arrays        row after row, little-endian, each array aligned for vector instructions
    description   JSON: what its writer adds (`about`), and for each array its dtype, shape, offset and the checksum of
                  every chunk of rows

A file is written under another name, made durable and then renamed, so a name in the folder is a whole segment.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polysem.atomic_write import sync_folder, write_all
from polysem.search.store.errors import SearchError, explain_errors

_MAGIC, _VERSION = b"polysem\0", 1
_HEAD = struct.Struct("<8sIIQQ")  # magic, version, checksum of the description, its place, its length
_ALIGN = 64
_CHUNK = 2**20
_PARTIAL = ".partial"


class Column(NamedTuple):
    """An array to be written: its type, the shape of a row, and its rows in blocks, which are taken one at a time."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    blocks: Iterable[NDArray[Any]]

    @classmethod
    def of(cls, array: NDArray[Any], dtype: Any = None) -> Column:
        """A column of an array that is in memory."""
        return cls(np.dtype(dtype or array.dtype), array.shape[1:], [array])


@dataclass(frozen=True)
class _Layout:
    """Where an array lies in its file. shape: of a row. crc32: of each chunk of rows."""

    dtype: str
    rows: int
    shape: list[int]
    start: int
    crc32: list[int]

    @property
    def row_bytes(self) -> int:
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)

    @property
    def chunk(self) -> int:
        """Rows under each checksum."""
        return max(1, _CHUNK // max(1, self.row_bytes))


class Damage(NamedTuple):
    """What is wrong with a segment: `rows` is the range of damaged rows (None if none of it can be read)."""

    segment: str
    rows: range | None
    why: str

    @property
    def number(self) -> int | None:
        """Of the segment; None where the damage concerns no vectors."""
        name = re.fullmatch(r"segment-(\d+)\.seg", self.segment)
        return None if name is None else int(name[1])

    def __str__(self) -> str:
        where = "" if self.rows is None else f", rows {self.rows.start} to {self.rows.stop - 1}"
        return f"{self.segment}{where}: {self.why}"


def write(path: Path, columns: Mapping[str, Column], about: Mapping[str, Any] | None = None) -> int:
    """Write a segment whole or not at all, and return its bytes. It is durable when this returns."""
    partial = path.with_name(path.name + _PARTIAL)
    with explain_errors("write", path, changes=True):
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o666)
            try:
                size = _write_into(descriptor, columns, about or {})
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            partial.replace(path)
            sync_folder(path.parent)
        except BaseException:
            with suppress(OSError):  # what stopped the writing is the better message; the next writer removes the file
                partial.unlink(missing_ok=True)
            raise
    return size


def _write_into(descriptor: int, columns: Mapping[str, Column], about: Mapping[str, Any]) -> int:
    layouts: dict[str, _Layout] = {}
    write_all(descriptor, bytes(_HEAD.size))
    end = _HEAD.size
    for name, column in columns.items():
        write_all(descriptor, bytes(-end % _ALIGN))
        end += -end % _ALIGN
        layout = _Layout(column.dtype.newbyteorder("<").str, 0, list(column.shape), end, [])
        layouts[name] = replace(layout, rows=_write_rows(descriptor, column, layout))
        end += layouts[name].rows * layout.row_bytes
    content = {"about": dict(about), "arrays": {name: asdict(layout) for name, layout in layouts.items()}}
    description = json.dumps(content, separators=(",", ":")).encode()
    write_all(descriptor, description)
    # The head comes last: it is what makes the file a segment.
    os.lseek(descriptor, 0, os.SEEK_SET)
    write_all(descriptor, _HEAD.pack(_MAGIC, _VERSION, zlib.crc32(description), end, len(description)))
    return end + len(description)


def _write_rows(descriptor: int, column: Column, layout: _Layout) -> int:
    """Write all blocks, and one checksum for each `layout.chunk` rows of them."""
    rows = 0
    for block in column.blocks:
        if block.shape[1:] != tuple(column.shape):
            raise SearchError(f"Rows of shape {tuple(column.shape)} were announced, got {block.shape[1:]}.")
        while len(block):  # cut where chunks end
            part = block[: layout.chunk - rows % layout.chunk]
            content = np.ascontiguousarray(part, np.dtype(layout.dtype)).view(np.uint8).data if part.size else b""
            if rows % layout.chunk == 0:
                layout.crc32.append(0)
            layout.crc32[-1] = zlib.crc32(content, layout.crc32[-1])
            write_all(descriptor, content)
            rows += len(part)
            block = block[len(part) :]
    return rows


class Segment:
    """A segment that is mapped: `arrays` are read-only views, and nothing is read before it is touched.

    It stays readable after its file is deleted.
    """

    def __init__(self, path: Path, mapped: mmap.mmap, about: dict[str, Any], layouts: dict[str, _Layout]) -> None:
        self.path, self.about, self.bytes = path, about, len(mapped)
        self._mapped, self._layouts = mapped, layouts
        self.arrays: dict[str, NDArray[Any]] = {}
        for name, layout in layouts.items():
            values = np.frombuffer(mapped, layout.dtype, layout.rows * math.prod(layout.shape), layout.start)
            self.arrays[name] = values.reshape(layout.rows, *layout.shape)

    @classmethod
    def open(cls, path: Path) -> Segment:
        """Map the segment at `path`. A file that is gone is a FileNotFoundError, one that is damaged a SearchError."""
        with path.open("rb") as file:
            try:
                about, layouts = _describe(file)
                return cls(path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), about, layouts)
            except (ValueError, KeyError, TypeError) as error:
                raise SearchError(f"{path.name} is damaged: {error}.") from None

    def require(self, shape: tuple[int, ...]) -> None:
        """Refuse a file that is whole and not the one it should be."""
        own = self.arrays["vectors"].shape if "vectors" in self.arrays else None
        if own != shape:
            raise SearchError(f"{self.path.name} is another file: it holds vectors of {own}, not of {shape}.")

    @property
    def signature(self) -> tuple[Any, ...]:
        """Equal for segments whose rows may share one file."""
        return tuple((name, layout.dtype, *layout.shape) for name, layout in sorted(self._layouts.items()))

    def verify(self, needed: NDArray[np.bool_] | None = None) -> list[Damage]:
        """Read every chunk and compare its checksum; with `needed`, only the chunks that hold such a row."""
        damage = []
        for name, layout in self._layouts.items():
            for number, crc32 in enumerate(layout.crc32):
                rows = range(number * layout.chunk, min(layout.rows, (number + 1) * layout.chunk))
                if needed is not None and not needed[rows.start : rows.stop].any():
                    continue
                try:
                    content = self._read(layout, rows)
                    why = "" if zlib.crc32(content) == crc32 else f"the checksum of {name!r} differs"
                except OSError as error:
                    why = f"{name!r} cannot be read ({error.strerror})"
                if why:
                    damage.append(Damage(self.path.name, rows, why))
        return damage

    def read(self, name: str, rows: range) -> NDArray[Any]:
        """A copy of these rows. Read, not mapped: pages touched through a map count as this process's memory."""
        layout = self._layouts[name]
        return np.frombuffer(self._read(layout, rows), layout.dtype).reshape(len(rows), *layout.shape)

    def _read(self, layout: _Layout, rows: range) -> bytes:
        """The bytes of these rows. What a failing disk does to a map cannot be caught; what it does to a read can."""
        place, length = layout.start + rows.start * layout.row_bytes, len(rows) * layout.row_bytes
        try:
            with self.path.open("rb") as file:
                file.seek(place)
                return file.read(length)
        except FileNotFoundError:  # deleted since, so that the map is all there is
            return self._mapped[place : place + length]


def _describe(file: IO[bytes]) -> tuple[dict[str, Any], dict[str, _Layout]]:
    head, size = file.read(_HEAD.size), os.fstat(file.fileno()).st_size
    if len(head) < _HEAD.size or not head.startswith(_MAGIC):
        raise ValueError("it does not begin as a segment does")
    _, version, crc32, place, length = _HEAD.unpack(head)
    if version != _VERSION:
        raise ValueError(f"it is of version {version}, this polysem reads {_VERSION}")
    if size != place + length:
        raise ValueError(f"it has {size:,} bytes and should have {place + length:,}")
    file.seek(place)
    description = file.read(length)
    if zlib.crc32(description) != crc32:
        raise ValueError("the checksum of its description differs")
    content = json.loads(description)
    return content["about"], {name: _Layout(**layout) for name, layout in content["arrays"].items()}


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"segment-{number:06d}.seg"


def attached_path(segment: Path, name: str) -> Path:
    return segment.with_name(f"{segment.stem}.{name}.seg")


def describe_unreadable(path: Path, error: Exception) -> Damage:
    """The damage of a segment that cannot be opened."""
    why = f"it cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)
    return Damage(path.name, None, "the file is gone" if isinstance(error, FileNotFoundError) else why)


def live_rows(dead: bytes | None, rows: int) -> NDArray[np.bool_]:
    """(rows,) mask of the rows without a tombstone. dead: packed bits."""
    if dead is None:
        return np.ones(rows, np.bool_)
    return ~np.unpackbits(np.frombuffer(dead, np.uint8), count=rows).astype(np.bool_)
