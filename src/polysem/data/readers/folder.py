"""A folder of pictures, with captions from same-named text files, a table, or none at all."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polysem.data.collection import Collection, DataError, Item, Media, Problems
from polysem.data.images import is_image
from polysem.data.readers import base

_TABLES = ("captions.csv", "captions.jsonl")
_KNOWN_COLUMNS = ("image", "caption", "labels", "split")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")
_DIGITS = len(str(-(2**63)))


def _recognise(data: base.DataLocation) -> dict[str, Any] | None:
    if data.is_folder:
        return {"folder": data.path}
    return {"folder": data.path.parent, "table": data.path} if data.path.suffix in (".csv", ".jsonl") else None


@base.register_reader(_recognise, priority=100, layout="a folder of pictures or its .csv or .jsonl table")
def read_folder(
    folder: Path,
    table: Path | None = None,
    folder_labels: bool = False,
    repair_bytes: bool = False,
    problems: Problems | None = None,
) -> Collection:
    """Read every picture below a folder; an item's id is its path from there.

    Captions come from the table, else from `photo.txt` beside `photo.jpg`, a caption per line.

    Args:
        table: with the columns image, caption, and if wanted labels and split; others become metadata of the item.
            `captions.csv` or `captions.jsonl` in the folder if not given.
        folder_labels: subfolder names are labels; a first one called train, val or test is the split instead.
    """
    problems = problems or Problems()
    table = table or next((folder / name for name in _TABLES if (folder / name).is_file()), None)
    pictures = list(base.walk_files(folder, is_image))
    if not pictures:
        raise DataError(f"{folder}: no pictures here (.gif, .jpg, .png, .webp …).")
    rows = _read_table(table, set(pictures), problems)
    items = []
    for name in pictures:
        row = rows[name]
        texts, text = row["captions"], (folder / name).with_suffix(".txt")
        if not texts and text.is_file():
            try:
                texts = [line for line in text.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
            except UnicodeDecodeError:
                problems.error("caption encoding", text, "is not UTF-8 text.")
        captions = base.clean_captions(texts, name, problems, repair_bytes)
        # train/dog/1.png: the split and the labels.
        split, labels = None, Path(name).parent.parts if folder_labels else ()
        if labels and base.normalise_split(labels[0]) in ("train", "val", "test"):
            split, labels = base.normalise_split(labels[0]), labels[1:]
        labels = tuple(dict.fromkeys([*row["labels"], *labels]))
        split = base.normalise_split(row["split"]) or split
        items.append(Item(name, Media(folder, name), captions, labels, split, metadata=row["metadata"]))
    return Collection(folder.name, "image", items, problems.skipped)


def _read_table(path: Path | None, known: set[str], problems: Problems) -> dict[str, dict[str, Any]]:
    """Image -> its captions, labels, split and metadata, gathered over its rows."""
    gathered: dict[str, dict[str, Any]] = defaultdict(
        lambda: {"captions": [], "labels": [], "split": None, "metadata": {}}
    )
    if path is None:
        return gathered
    for line, row in _iterate_rows(path):
        where = f"{path.name} line {line}"
        image = row.get("image")
        if not isinstance(image, str) or not image:
            problems.error("malformed row", where, f"has no 'image' (its columns: {', '.join(map(str, row))}).")
            continue
        image = Path(image).as_posix()
        if image not in known:
            problems.skip("missing picture", where, f"names {image!r}, which is not in the folder.")
            continue
        entry = gathered[image]
        if row.get("caption") not in (None, ""):
            entry["captions"].append(row["caption"])
        entry["labels"] += _parse_row_labels(row.get("labels"), where, problems)
        for name, value in row.items():
            if name not in _KNOWN_COLUMNS and isinstance(name, str) and value not in (None, ""):
                entry["metadata"].setdefault(name, _parse_csv_value(value) if path.suffix == ".csv" else value)
        split = row.get("split") or None
        if split and entry["split"] and entry["split"] != split:
            before = entry["split"]
            problems.error("two splits", where, f"puts {image!r} in {split!r}; an earlier row put it in {before!r}.")
        entry["split"] = entry["split"] or split
    return gathered


def _iterate_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    text = base.read_text(path)
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


def _parse_csv_value(text: Any) -> Any:
    """What a field of a CSV file means: a number as it is commonly written, true, false, or the text itself."""
    if not isinstance(text, str):  # the fields beyond the named columns
        return text
    if _NUMBER.fullmatch(text):
        if "." in text:
            return float(text)
        # What has more than 64 bits is a code rather than a number, and filters could not compare it.
        return int(text) if len(text) <= _DIGITS and -(2**63) <= int(text) < 2**63 else text
    return {"true": True, "false": False}.get(text.lower(), text)


def _parse_row_labels(value: object, where: str, problems: Problems) -> tuple[str, ...]:
    """A JSON list, also one written as text, or names separated by semicolons, bars or commas."""
    if isinstance(value, str) and not value.lstrip().startswith("["):
        return base.split_labels(value)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            message = f'labels begin with [ but are not a JSON list: {value!r:.40}. Write ["a", "b"] or a; b.'
            problems.error("malformed labels", where, message)
            return ()
    return base.parse_labels([value] if isinstance(value, int) else value, where, problems)
