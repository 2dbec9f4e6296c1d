"""The folder of a finished set, and how it comes to be: built aside, moved into place, never half there.

Everything is made in a hidden folder inside it. Only a whole set is moved out of it, its list last: without that
nothing takes the folder for a set.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polysem.atomic_write import hold_lock
from polysem.errors import InputError

LIST = "dataset_emoji.json"
MANIFEST = "manifest.json"
LICENCE = "LICENSE-art.txt"
IMAGES = "images"


@dataclass(frozen=True)
class Layout:
    """What a set consists of. dataset: its name in the manifest. content: the folder of its files, which end in
    `suffix`. lists: the files beside them, the one that makes it a set last."""

    dataset: str
    content: str
    suffix: str
    lists: tuple[str, ...]

    @property
    def partial(self) -> str:
        return f".{self.dataset}.partial"

    @property
    def in_order(self) -> tuple[str, ...]:
        return self.content, LICENCE, MANIFEST, *self.lists

    @property
    def spoken(self) -> str:
        return self.dataset.replace("-", " ")


SCENES = Layout("emoji-scenes", IMAGES, ".png", (LIST,))


def is_complete(out: Path, manifest: Mapping[str, Any], layout: Layout = SCENES) -> bool:
    """Whether `out` already holds the set the manifest describes. Another set or foreign files there are an error."""
    try:
        there = {path.name for path in out.iterdir()}
    except FileNotFoundError:
        return False
    except NotADirectoryError as error:
        raise InputError(f"{out} is, or lies in, a file. Give a folder that is new or empty.") from error
    except OSError as error:
        raise InputError(f"Cannot read {out}: {error.strerror or error}.") from error
    complete = layout.lists[-1] in there
    unfinished = layout.partial in there and not complete and there <= {*layout.in_order, layout.partial}
    if not there or unfinished:
        return False
    found = _described(out / MANIFEST, layout)
    if found is None or not complete:
        raise InputError(
            f"{out} is not empty and holds no {layout.spoken} ({', '.join(sorted(there)[:3])} …). "
            "Give a folder that is new or empty."
        )
    differences = [
        f"{key} {_short(found.get(key))} instead of {_short(manifest[key])}"
        for key in manifest
        if found.get(key) != manifest[key]
    ]
    if differences:
        raise InputError(
            f"{out} holds another set of {layout.spoken} ({'; '.join(differences)}). "
            "Give another folder, or delete this one first."
        )
    files = sum(1 for _ in (out / layout.content).glob(f"*{layout.suffix}")) if (out / layout.content).is_dir() else 0
    if files != manifest["items"]:
        what = "pictures" if layout.content == IMAGES else layout.content
        raise InputError(
            f"{out} has lost {what}: {files} of {manifest['items']} are there. "
            "Delete the folder and make the set again."
        )
    return True


@contextmanager
def under_construction(out: Path, manifest: Mapping[str, Any], layout: Layout = SCENES) -> Iterator[Path]:
    """A folder to build in; what is in it moves to `out` when the block ends well, and goes away when it does not."""
    partial = out / layout.partial
    created = not out.exists()
    try:
        partial.mkdir(parents=True, exist_ok=True)
        busy = InputError(f"Another run is writing to {out}. Wait for it, or give another folder.")
        with hold_lock(partial, busy):
            for leftover in (*(out / name for name in layout.in_order), *partial.iterdir()):
                _remove(leftover)
            write(partial / MANIFEST, json.dumps(manifest, indent=2) + "\n")
            (partial / layout.content).mkdir()
            try:
                yield partial
                for name in layout.in_order:
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


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _described(manifest: Path, layout: Layout) -> dict[str, Any] | None:
    """The manifest of such a set at that path, or None."""
    try:
        found = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("dataset") == layout.dataset else None


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{key} {entry}" for key, entry in value.items()) + ")"
    return str(value)
