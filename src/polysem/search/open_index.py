"""Creating and opening an index by its place: a folder, a folder that points to Milvus, or an address of Milvus."""

from __future__ import annotations

import json
from pathlib import Path

from polysem.atomic_write import write_text
from polysem.errors import InputError
from polysem.search.backend import Backend
from polysem.search.local import LocalBackend
from polysem.search.store import Manifest, SearchError
from polysem.search.store.errors import explain_errors

POINTER = "store.json"
SCHEME = "milvus+"


def create(place: str | Path, manifest: Manifest, store: str | None = None) -> Backend:
    """Create an index. store: keep it at this address instead of in the folder, which then points there."""
    if store is None and not str(place).startswith(SCHEME):
        with explain_errors("create", Path(place)):
            points = (Path(place) / POINTER).exists()
        if points:
            raise SearchError(f"{place} points to an index already. Choose another folder, or delete {POINTER} in it.")
        return LocalBackend.create(place, manifest)
    address = str(place) if store is None else store
    _check_address(address)
    from polysem.search.milvus import MilvusBackend

    if store is None:
        return MilvusBackend.create(address, manifest)
    folder = Path(place)
    if (folder / POINTER).exists() or any(folder.glob("index.sqlite*")):
        raise SearchError(f"{folder} holds an index already. Choose another folder, or delete it first.")
    backend = MilvusBackend.create(address, manifest)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / POINTER, json.dumps({"store": backend.address}, indent=2) + "\n")
    except OSError as error:
        backend.close()
        why = f"{folder / POINTER} cannot be written ({error.strerror or error})"
        raise SearchError(f"The index was made at {backend.address}, but {why}. Use the address instead.") from None
    return backend


def open_backend(place: str | Path, write: bool = False) -> Backend:
    """Open an index, wherever it is."""
    address = _read_address(place)
    if address is None:
        return LocalBackend.open(place, write)
    _check_address(address)
    from polysem.search.milvus import MilvusBackend

    return MilvusBackend.open(address, write=write)


def points_to(place: str | Path, store: str) -> bool:
    """Whether a folder points to the index at this address."""
    address = _read_address(place)
    if address is None:
        return False
    _check_address(store)
    from polysem.search.milvus import Address

    return Address.parse(address).url == Address.parse(store).url


def _read_address(place: str | Path) -> str | None:
    """Where the index is, None if it is in the folder itself."""
    if str(place).startswith(SCHEME):
        return str(place)
    pointer = Path(place) / POINTER
    with explain_errors("open", Path(place)):  # a folder that may not be looked into
        if not pointer.is_file():
            return None
    try:
        return str(json.loads(pointer.read_text(encoding="utf-8"))["store"])
    except (OSError, ValueError, KeyError, TypeError):
        raise SearchError(f'{pointer} does not say where the index is. Write {{"store": ADDRESS}}.') from None


def _check_address(address: str) -> None:
    if not address.startswith(SCHEME):
        raise InputError(f"A store is an address such as milvus+http://localhost:19530/photos, got {address!r}.")
