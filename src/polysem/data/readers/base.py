"""What readers share: how one registers itself, and files, captions and labels as people and scripts write them."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from polysem.data.collection import Collection, DataError, Problems
from polysem.plugins import require_free_name

Read = TypeVar("Read", bound=Callable[..., Collection])
Recognise = Callable[["DataLocation"], dict[str, Any] | None]


class DataLocation:
    """A file or folder whose layout is to be recognised."""

    def __init__(self, path: Path) -> None:
        self.path, self.is_folder = path, path.is_dir()

    @cached_property
    def json(self) -> Any:
        """The content of a .json file, parsed once for every reader that looks at it; None of anything else."""
        return read_json(self.path) if not self.is_folder and self.path.suffix == ".json" else None


@dataclass(frozen=True)
class CollectionReader:
    """A layout of data: how it is recognised, and the function that reads it."""

    priority: int
    recognise: Recognise
    read: Callable[..., Collection]
    layout: str


READERS: list[CollectionReader] = []
"""In the order in which they are asked."""


def register_reader(recognise: Recognise, priority: int, layout: str = "") -> Callable[[Read], Read]:
    """Register the decorated function as the reader of a layout. It takes `problems` to report to; its other
    parameters are options of `open_collection`.

    Args:
        recognise: given a `DataLocation`, the arguments to call the function with; None if the layout is another one.
        priority: readers are asked in ascending order. Layouts with telling file names are below 60, layouts that
            are known by what kind of files there are from 60 on, and 100 takes any folder.
        layout: what it reads, for the list of known layouts; the function's name if not given.
    """

    def register(read: Read) -> Read:
        name = read.__name__
        require_free_name("reader", name, read, next((r.read for r in READERS if r.read.__name__ == name), read))
        READERS.append(CollectionReader(priority, recognise, read, layout or name))
        READERS.sort(key=lambda reader: reader.priority)
        return read

    return register


def recognise_folders(*names: str) -> Recognise:
    """Recognises a folder that holds folders of these names."""
    return lambda data: {"folder": data.path} if all((data.path / name).is_dir() for name in names) else None


def walk_files(folder: Path, accept: Callable[[Path], bool]) -> Iterator[str]:
    """Relative paths of the files below `folder`, in a fixed order. Links to folders are not followed: they may lead
    in circles."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith(".") and accept(Path(name)):
                yield (Path(parent) / name).relative_to(folder).as_posix()


def read_text(path: Path) -> str:
    """The content of a text file in UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text ({error}).") from None


def read_json(path: Path) -> Any:
    """The content of a JSON file, or an error that says where it breaks."""
    text = read_text(path)
    if not text.strip():
        raise DataError(f"{path}: the file is empty.")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not valid JSON, line {error.lineno}: {error.msg}.") from None


def complete_entries(
    entries: Iterable[Any], what: str, fields: Mapping[str, type], where: str, problems: Problems
) -> Iterator[dict[str, Any]]:
    """The entries of a JSON list that have all `fields` with values of these types; the others are errors."""
    for number, entry in enumerate(entries):
        known = entry if isinstance(entry, dict) else {}
        wrong = [name for name, kind in fields.items() if known.get(name) is None or not isinstance(known[name], kind)]
        if not wrong:
            yield known
            continue
        name, kind = wrong[0], fields[wrong[0]]
        value = f"has no {name}" if known.get(name) is None else f"has the {name} {known[name]!r:.40}"
        expected = {int: "; expected a whole number", str: "; expected a text"}.get(kind, f": {entry!r:.60}")
        called = known.get("id", f"{number} (counted from 0)")
        problems.error("malformed entry", where, f"{what} {called} {value}{expected}. Correct or remove it.")


def clean_captions(
    captions: Sequence[object], where: str, problems: Problems, repair_bytes: bool = False
) -> tuple[str, ...]:
    """Stripped captions; empty ones are skipped. Text that is really a printed bytes object is an error, unless
    `repair_bytes` decodes it. where: the item they describe, for messages."""
    return clean_named_captions(captions, (), where, problems, repair_bytes)[0]


def clean_named_captions(
    captions: Sequence[object], ids: Sequence[object], where: str, problems: Problems, repair_bytes: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`clean_captions`, and the ids of those that are left. Without an id for each caption there are none."""
    kept: dict[int, str] = {}
    for number, caption in enumerate(captions):
        if not isinstance(caption, str):
            problems.error("caption type", where, f"caption {number} is {type(caption).__name__}, expected text.")
            continue
        caption = " ".join(caption.split())
        is_bytes = caption.startswith(("b'", 'b"'))
        if is_bytes and repair_bytes:
            try:
                value = ast.literal_eval(caption)
                caption = " ".join((value.decode("utf-8") if isinstance(value, bytes) else caption).split())
            except (ValueError, SyntaxError):
                problems.error("bytes caption", where, f"cannot be repaired: {caption[:40]!r}.")
        elif is_bytes:
            found = f"caption {number} begins with b' ({caption[:40]!r}): Python printed bytes instead of text"
            effect = "Every such caption starts with the same odd word, which costs about half the recall"
            remedy = "Write the file again as text, or read it with repair_bytes=True"
            problems.error("bytes caption", where, f"{found}. {effect}. {remedy}.")
        if caption:
            kept[number] = caption
        else:
            problems.skip("empty caption", where, f"caption {number} is empty.")
    named = len(ids) == len(captions) and None not in ids
    return tuple(kept.values()), tuple(str(ids[number]) for number in kept if named)


def parse_labels(value: object, where: object, problems: Problems) -> tuple[str, ...]:
    """Labels from a JSON value: null is none, a text is one, a list has texts or whole numbers."""
    entries = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(entries, list):
        shown = f"{json.dumps(value)[:40]} ({type(value).__name__})"
        problems.error("label type", where, f"labels are {shown}; expected a list of names.")
        return ()
    names = []
    for entry in entries:
        if isinstance(entry, (str, int)) and not isinstance(entry, bool):
            names.append(str(entry).strip())
            continue
        shown = f"{json.dumps(entry)[:40]} ({type(entry).__name__})"
        problems.error("label type", where, f"a label is {shown}; expected a name in quotes.")
    return tuple(dict.fromkeys(name for name in names if name))


def split_labels(text: str) -> tuple[str, ...]:
    """Labels separated by semicolons or bars; by commas where there is neither, since names may hold commas."""
    separator = "[;|]" if ";" in text or "|" in text else ","
    return tuple(dict.fromkeys(name.strip() for name in re.split(separator, text) if name.strip()))


def normalise_split(name: object) -> str | None:
    """One spelling for the splits that data sets name differently."""
    lowered = "" if name is None else str(name).strip().lower()
    aliases = {"dev": "val", "valid": "val", "validate": "val", "validation": "val", "testall": "test"}
    return aliases.get(lowered, lowered) or None
