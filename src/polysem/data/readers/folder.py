"""A folder of pictures, with captions from same-named text files, a table, or none at all."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polysem.data.collection import Collection, Item, Media
from polysem.data.images import is_image
from polysem.data.reader_errors import DataError, Problems
from polysem.data.readers.text import clean_captions, listed_labels, separated_labels, split_name

TABLES = ("captions.csv", "captions.jsonl")
KNOWN_COLUMNS = ("image", "caption", "labels", "split")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")
_DIGITS = len(str(-(2**63)))


def read_folder(
    folder: Path,
    table: Path | None = None,
    folder_labels: bool = False,
    repair_bytes: bool = False,
    problems: Problems | None = None,
) -> Collection:
    """Every picture below `folder`; an item's id is its path from there.

    Captions come from the table (`captions.csv` or `captions.jsonl` in the folder: image, caption, and if wanted labels
    and split), else from `photo.txt` beside `photo.jpg`, a caption per line. Other columns become metadata of the item.
    folder_labels: subfolder names are labels; a first one called train, val or test is the split instead.
    """
    problems = problems or Problems()
    table = table or next((folder / name for name in TABLES if (folder / name).is_file()), None)
    pictures = list(picture_files(folder))
    if not pictures:
        raise DataError(f"{folder}: no pictures here ({', '.join(sorted({'.jpg', '.png', '.webp', '.gif'}))} …).")
    rows = _table(table, set(pictures), problems) if table else {}
    items = []
    for name in pictures:
        row = rows.get(name) or _nothing()
        captions = row["captions"] or _beside(folder, name, problems)
        split, named = _of_folders(name) if folder_labels else (None, ())
        labels = [*row["labels"], *named]
        items.append(
            Item(
                name,
                Media(folder, name),
                clean_captions(captions, name, problems, repair_bytes),
                tuple(dict.fromkeys(labels)),
                split_name(row["split"]) or split,
                metadata=row["metadata"],
            )
        )
    return Collection(folder.name, "image", items, problems.skipped)


def picture_files(folder: Path) -> Iterator[str]:
    """Relative paths in a fixed order. Links to folders are not followed: they may lead in circles."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith(".") and is_image(Path(name)):
                yield (Path(place) / name).relative_to(folder).as_posix()


def _of_folders(name: str) -> tuple[str | None, tuple[str, ...]]:
    """train/dog/1.png -> the split and the labels."""
    folders = Path(name).parent.parts
    split = split_name(folders[0]) if folders else None
    return (split, folders[1:]) if split in ("train", "val", "test") else (None, folders)


def _beside(folder: Path, name: str, problems: Problems) -> list[str]:
    text = (folder / name).with_suffix(".txt")
    if not text.is_file():
        return []
    try:
        return [line for line in text.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError:
        problems.error("caption encoding", text, "is not UTF-8 text.")
        return []


def _table(path: Path, known: set[str], problems: Problems) -> dict[str, dict[str, Any]]:
    """Image -> its captions, labels and split, gathered over its rows."""
    gathered: dict[str, dict[str, Any]] = {}
    for line, row in _rows(path):
        where = f"{path.name} line {line}"
        image = row.get("image")
        if not isinstance(image, str) or not image:
            problems.error("malformed row", where, f"has no 'image' (its columns: {', '.join(map(str, row))}).")
            continue
        image = Path(image).as_posix()
        if image not in known:
            problems.skip("missing picture", where, f"names {image!r}, which is not in the folder.")
            continue
        entry = gathered.setdefault(image, _nothing())
        if row.get("caption") not in (None, ""):
            entry["captions"].append(row["caption"])
        entry["labels"] += _labels(row.get("labels"), where, problems)
        for name, value in row.items():
            if name not in KNOWN_COLUMNS and isinstance(name, str) and value not in (None, ""):
                entry["metadata"].setdefault(name, _value(value) if path.suffix == ".csv" else value)
        split = row.get("split") or None
        if split and entry["split"] and entry["split"] != split:
            problems.error(
                "two splits", where, f"puts {image!r} in {split!r}; an earlier row put it in {entry['split']!r}."
            )
        entry["split"] = entry["split"] or split
    return gathered


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text ({error}).") from None
    if not text.strip():
        raise DataError(f"{path}: the table is empty.")
    if path.suffix == ".jsonl":
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    why = error.msg if isinstance(error, json.JSONDecodeError) else error
                    raise DataError(f"{path} line {number}: not valid JSON ({why}).") from None
                yield number, row if isinstance(row, dict) else {}
        return
    reader = csv.DictReader(io.StringIO(text))
    if "image" not in (reader.fieldnames or ()):
        raise DataError(f"{path}: the first line must name the columns 'image' and 'caption', got {reader.fieldnames}.")
    for row in reader:
        yield reader.line_num, row


def _nothing() -> dict[str, Any]:
    return {"captions": [], "labels": [], "split": None, "metadata": {}}


def _value(text: Any) -> Any:
    """What a field of a CSV file means: a number as it is commonly written, true, false, or the text itself."""
    if not isinstance(text, str):  # the fields beyond the named columns
        return text
    if _NUMBER.fullmatch(text):
        if "." in text:
            return float(text)
        # What has more than 64 bits is a code rather than a number, and filters could not compare it.
        return int(text) if len(text) <= _DIGITS and -(2**63) <= int(text) < 2**63 else text
    return {"true": True, "false": False}.get(text.lower(), text)


def _labels(value: object, where: str, problems: Problems) -> tuple[str, ...]:
    """A JSON list, also one written as text, or names separated by semicolons, bars or commas."""
    if isinstance(value, str) and not value.lstrip().startswith("["):
        return separated_labels(value)
    if isinstance(value, str):
        text = value
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            said = f'labels begin with [ but are no JSON list: {text[:40]!r}. Write ["red", "green"], or red; green.'
            problems.error("malformed labels", where, said)
            return ()
    if isinstance(value, int):
        value = [value]
    return listed_labels(value, where, problems)
