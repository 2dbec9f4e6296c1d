"""SCAN's precomputed regions: `{split}_ims.npy`, `{split}_caps.txt`, `{split}_ids.txt`, and labels if there are any."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from polysem.data.collection import Collection, Item, Media
from polysem.data.feature_files import open_features
from polysem.data.reader_errors import DataError, Problems
from polysem.data.readers.label_matrix import read_labels
from polysem.data.readers.text import clean_captions, split_name


def read_precomp(
    folder: Path,
    splits: Sequence[str] | None = None,
    repair_bytes: bool = False,
    problems: Problems | None = None,
) -> Collection:
    """The features stay on disk, memory-mapped. splits: as the files are called (`dev`, `testall` …); all if not given.

    Labels, if there are any, stand in `{split}_labels.npy` or `.txt`: see `label_matrix`.
    A file that repeats each image once per caption, as the released dev and test files do, gives each image once.
    """
    problems = problems or Problems()
    found = sorted(path.name.removesuffix("_ims.npy") for path in folder.glob("*_ims.npy"))
    if not found:
        raise DataError(
            f"{folder}: no *_ims.npy here. Expected {{split}}_ims.npy, {{split}}_caps.txt, {{split}}_ids.txt."
        )
    missing = [split for split in splits or () if split not in found]
    if missing:
        raise DataError(f"{folder}: no split {missing[0]!r}; it has {', '.join(found)}.")
    items: list[Item] = []
    owner: dict[str, str] = {}
    columns: dict[str, int] = {}
    for split in splits or found:
        for item in _read_split(folder, split, repair_bytes, problems, columns):
            if item.id in owner:
                kind = "duplicate id" if owner[item.id] == split else "two splits"
                problems.error(kind, f"{split}_ids.txt", f"id {item.id} occurs in {owner[item.id]!r} and in {split!r}.")
                continue
            owner[item.id] = split
            items.append(item)
    _check_columns(folder, columns, problems)
    return Collection(folder.name, "features", items, problems.skipped)


def _read_split(
    folder: Path, split: str, repair_bytes: bool, problems: Problems, columns: dict[str, int]
) -> list[Item]:
    name = f"{split}_ims.npy"
    array = open_features(folder / name)
    if array.ndim != 3:
        raise DataError(f"{folder / name}: expected (images, regions, dim), got shape {array.shape}.")
    lines = _lines(folder / f"{split}_caps.txt")
    if lines is None:
        raise DataError(f"{folder / split}_caps.txt: no such file; it holds one caption per line.")
    rows, captions = len(array), len(lines)
    if rows == 0 or captions % rows:
        problems.error(
            "uneven counts",
            folder / name,
            f"{captions} captions do not divide among {rows} images. One of the two files is cut short or foreign.",
        )
        captions = captions // max(1, rows) * rows
    per_row = captions // max(1, rows)
    repeats = _repeats(array) if per_row == 1 else 1
    step = per_row * repeats
    ids = _lines(folder / f"{split}_ids.txt")
    if ids is not None and len(ids) not in (rows, captions, rows // repeats):
        problems.error(
            "uneven counts",
            folder / f"{split}_ids.txt",
            f"{len(ids)} ids for {rows} rows of images and {captions} captions; expected as many as one of them.",
        )
        ids = None
    labels = read_labels(folder, split, rows // repeats, columns)
    items = []
    for image in range(rows // repeats if step else 0):
        own = ids[image * len(ids) // (rows // repeats)].strip() if ids else f"{split}-{image}"
        texts = clean_captions(
            lines[image * step : (image + 1) * step], f"{split} image {image}", problems, repair_bytes
        )
        known = () if labels is None else labels[image]
        items.append(Item(own, Media(folder, name, image * repeats), texts, known, split_name(split)))
    return items


def _check_columns(folder: Path, columns: dict[str, int], problems: Problems) -> None:
    """The same column must be the same label in every split."""
    if len(set(columns.values())) > 1:
        counts = ", ".join(f"{count} in {name}" for name, count in columns.items())
        problems.error(
            "label columns",
            folder,
            f"the splits differ in their label columns: {counts}; expected the same labels in the same order. "
            "Write a column for every label in each, all 0 where no image has it.",
        )


def _repeats(array: np.ndarray) -> int:
    """5 if the file holds every image five times in a row, else 1. A thin slice of each image tells them apart."""
    if len(array) % 5 or len(array) == 0:
        return 1
    thin = np.asarray(array[:, 0, :16]).reshape(len(array) // 5, 5, -1)
    return 5 if bool((thin == thin[:, :1]).all()) else 1


def _lines(path: Path) -> list[str] | None:
    if not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}).") from None
