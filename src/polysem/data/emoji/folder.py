"""The folder of a finished set, and how it comes to be: built aside, moved into place, never half there.

Everything is made in a hidden folder inside it. Only a whole set is moved out of it, its list of pictures last:
without `dataset_emoji.json` nothing takes the folder for a set.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from polysem.errors import InputError

LIST = "dataset_emoji.json"
MANIFEST = "manifest.json"
LICENCE = "LICENSE-art.txt"
IMAGES = "images"
_PARTIAL = ".emoji-scenes.partial"
_IN_ORDER = (IMAGES, LICENCE, MANIFEST, LIST)


def is_complete(out: Path, manifest: Mapping[str, Any]) -> bool:
    """Whether `out` already holds the set the manifest describes. Another set or foreign files there are an error."""
    try:
        there = {path.name for path in out.iterdir()}
    except FileNotFoundError:
        return False
    except NotADirectoryError as error:
        raise InputError(f"{out} is, or lies in, a file. Give a folder that is new or empty.") from error
    except OSError as error:
        raise InputError(f"Cannot read {out}: {error.strerror or error}.") from error
    unfinished = _PARTIAL in there and LIST not in there and there <= {*_IN_ORDER, _PARTIAL}
    if not there or unfinished:
        return False
    found = _described(out / MANIFEST)
    if found is None or LIST not in there:
        raise InputError(
            f"{out} is not empty and holds no emoji scenes ({', '.join(sorted(there)[:3])} …). "
            "Give a folder that is new or empty."
        )
    differences = [
        f"{key} {_short(found.get(key))} instead of {_short(manifest[key])}"
        for key in manifest
        if found.get(key) != manifest[key]
    ]
    if differences:
        raise InputError(
            f"{out} holds another set of emoji scenes ({'; '.join(differences)}). "
            "Give another folder, or delete this one first."
        )
    pictures = sum(1 for path in (out / IMAGES).glob("*.png")) if (out / IMAGES).is_dir() else 0
    if pictures != manifest["items"]:
        raise InputError(
            f"{out} has lost pictures: {pictures} of {manifest['items']} are there. "
            "Delete the folder and make the set again."
        )
    return True


@contextmanager
def under_construction(out: Path, manifest: Mapping[str, Any]) -> Iterator[Path]:
    """A folder to build in; what is in it moves to `out` when the block ends well, and goes away when it does not."""
    partial = out / _PARTIAL
    created = not out.exists()
    try:
        partial.mkdir(parents=True, exist_ok=True)
        with _held(partial):
            for leftover in (*(out / name for name in _IN_ORDER), *partial.iterdir()):
                _remove(leftover)
            write(partial / MANIFEST, json.dumps(manifest, indent=2) + "\n")
            (partial / IMAGES).mkdir()
            try:
                yield partial
                for name in _IN_ORDER:
                    os.replace(partial / name, out / name)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise InputError(f"Cannot write to {out}: {error.strerror or error}.") from error
    finally:
        if created:
            with suppress(OSError):
                out.rmdir()  # only when nothing came of it: a folder with a set in it stays


def write(path: Path, text: str) -> None:
    path.write_bytes(text.encode())


@contextmanager
def _held(partial: Path) -> Iterator[None]:
    """Keep a second run out of the same folder. The lock goes with the process, also when that is killed."""
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    handle = os.open(partial, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"Another run is writing to {partial.parent}. Wait for it, or give another folder."
            ) from error
        yield
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _described(manifest: Path) -> dict[str, Any] | None:
    """The manifest of emoji scenes at that path, or None."""
    try:
        found = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("dataset") == "emoji-scenes" else None


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{key} {entry}" for key, entry in value.items()) + ")"
    return str(value)
