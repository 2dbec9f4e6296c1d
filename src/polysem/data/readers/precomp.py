"""SCAN's precomputed regions: `{split}_ims.npy`, `{split}_caps.txt`, `{split}_ids.txt`, and labels if there are any."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polysem.data.collection import Collection, DataError, Item, Media, Problems, open_features
from polysem.data.readers import base


def _recognise(data: base.DataLocation) -> dict[str, Any] | None:
    folders = (data.path, data.path / "precomp")
    return next(({"folder": folder} for folder in folders if any(folder.glob("*_ims.npy"))), None)


@base.register_reader(_recognise, priority=20, layout="SCAN's *_ims.npy")
def read_precomp(
    folder: Path, splits: Sequence[str] | None = None, repair_bytes: bool = False, problems: Problems | None = None
) -> Collection:
    """Read SCAN's precomputed regions, which stay on disk, memory-mapped.

    A file that repeats each image once per caption, as the released dev and test files do, gives each image once.

    Args:
        folder: of the files. Labels, if there are any, stand in `{split}_labels.npy` or `{split}_labels.txt`.
        splits: as the files are called (`dev`, `testall` …); all if not given.
    """
    problems = problems or Problems()
    known = sorted(path.name.removesuffix("_ims.npy") for path in folder.glob("*_ims.npy"))
    if not known:
        expected = "{split}_ims.npy, {split}_caps.txt, {split}_ids.txt"
        raise DataError(f"{folder}: no *_ims.npy here. Expected {expected}.")
    missing = [split for split in splits or () if split not in known]
    if missing:
        raise DataError(f"{folder}: no split {missing[0]!r}; it has {', '.join(known)}.")
    items: list[Item] = []
    owner: dict[str, str] = {}
    columns: dict[str, int] = {}
    for split in splits or known:
        for item in _read_split(folder, split, repair_bytes, problems, columns):
            if item.id in owner:
                kind = "duplicate id" if owner[item.id] == split else "two splits"
                problems.error(kind, f"{split}_ids.txt", f"id {item.id} occurs in {owner[item.id]!r} and in {split!r}.")
                continue
            owner[item.id] = split
            items.append(item)
    if len(set(columns.values())) > 1:
        counts = ", ".join(f"{count} in {name}" for name, count in columns.items())
        remedy = "Write a column for every label in each, all 0 where no image has it."
        message = f"the splits differ in their label columns: {counts}; expected the same labels in the same order. "
        problems.error("label columns", folder, message + remedy)
    return Collection(folder.name, "features", items, problems.skipped)


def _read_split(
    folder: Path, split: str, repair_bytes: bool, problems: Problems, columns: dict[str, int]
) -> list[Item]:
    name = f"{split}_ims.npy"
    array = open_features(folder / name)
    if array.ndim != 3:
        raise DataError(f"{folder / name}: expected (images, regions, dim), got shape {array.shape}.")
    lines = base.read_text(folder / f"{split}_caps.txt").splitlines()
    rows, captions = len(array), len(lines)
    if rows == 0 or captions % rows:
        message = f"{captions} captions do not divide among {rows} images. One of the two files is cut or foreign."
        problems.error("uneven counts", folder / name, message)
        captions = captions // max(1, rows) * rows
    per_row = captions // max(1, rows)
    # The file may hold every image five times in a row. A thin slice of each image tells them apart.
    thin = np.asarray(array[:, 0, :16]).reshape(rows // 5, 5, -1) if per_row == 1 and rows % 5 == 0 else None
    repeats = 5 if thin is not None and bool((thin == thin[:, :1]).all()) else 1
    step = per_row * repeats
    names = folder / f"{split}_ids.txt"
    ids = base.read_text(names).splitlines() if names.is_file() else None
    if ids is not None and len(ids) not in (rows, captions, rows // repeats):
        counts = f"{len(ids)} ids for {rows} rows of images and {captions} captions"
        problems.error("uneven counts", names, f"{counts}; expected as many as one of them.")
        ids = None
    labels = _read_labels(folder, split, rows // repeats, columns)
    items = []
    for image in range(rows // repeats if step else 0):
        name_of_image = ids[image * len(ids) // (rows // repeats)].strip() if ids else f"{split}-{image}"
        own = lines[image * step : (image + 1) * step]
        texts = base.clean_captions(own, f"{split} image {image}", problems, repair_bytes)
        media, own_labels = Media(folder, name, image * repeats), labels[image] if labels else ()
        items.append(Item(name_of_image, media, texts, own_labels, base.normalise_split(split)))
    return items


def _read_labels(folder: Path, split: str, images: int, columns: dict[str, int]) -> list[tuple[str, ...]]:
    """The labels of each image; nothing where the split has none. Notes in `columns` how many its matrix has.

    `{split}_labels.npy`: (images, labels), 0 or 1; their names stand in `label_names.txt`, one per line, else they are
    called by their number. `{split}_labels.txt`: a line for each image, with names separated by semicolons, bars or
    commas, or with the row of such a matrix.
    """
    path, lines = folder / f"{split}_labels.npy", folder / f"{split}_labels.txt"
    if path.is_file():
        try:
            flags: np.ndarray = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path}: not a matrix that numpy can read ({error}).") from None
    elif lines.is_file():
        path, rows = lines, base.read_text(lines).splitlines()
        if len(rows) != images:
            raise DataError(f"{path}: {len(rows)} lines for {images} images; expected one for each.")
        parsed = _parse_matrix(rows, path)
        if parsed is None:
            return [base.split_labels(row) for row in rows]
        flags = parsed
    else:
        return []
    if flags.ndim != 2 or len(flags) != images:
        remedy = "Write a row for each image, a column for each label."
        raise DataError(f"{path}: expected the shape ({images}, labels), got {flags.shape}. {remedy}")
    if flags.dtype.kind not in "biuf":
        raise DataError(f"{path}: expected a matrix of 0 and 1, got {flags.dtype}. Save it as numbers: astype('int8').")
    wrong = np.argwhere(~np.isin(flags, (0, 1)))
    if len(wrong):
        row, column = (int(position) for position in wrong[0])
        raise DataError(
            f"{path}: row {row}, column {column} (counted from 0) is {flags[row, column]:g}; expected a matrix of "
            f"0 and 1 ({len(wrong)} entries are neither). Write 1 where the image has the label, 0 where it has not."
        )
    columns[path.name] = flags.shape[1]
    names = path.with_name("label_names.txt")
    known = base.read_text(names).split("\n") if names.is_file() else []
    called = [name.strip() for name in known if name.strip()] or [str(number) for number in range(flags.shape[1])]
    if len(called) != flags.shape[1] or len(set(called)) != len(called):
        raise DataError(f"{names}: {len(set(called))} different names for the {flags.shape[1]} columns of {path.name}.")
    return [tuple(called[column] for column in np.flatnonzero(row)) for row in flags]


def _parse_matrix(rows: list[str], path: Path) -> np.ndarray | None:
    """The matrix, if the lines are the numbers of one, as np.savetxt writes them; None if they are names."""
    cells = [row.replace(",", " ").split() for row in rows]
    try:
        numbers = [[float(cell) for cell in row] for row in cells]
    except ValueError:
        return None
    width = max((len(row) for row in numbers), default=0)
    uneven = next((line for line, row in enumerate(numbers) if len(row) != width), None)
    if width < 2:  # a number on each line is the name of a class
        return None
    if any("," in row for row in rows):
        # Names may be numbers: "3, 7". But nobody names a label twice, as each row of 0 and 1 does.
        flags = all(cell in (0, 1) for row in numbers for cell in row) or any(len(set(row)) < width for row in cells)
        if uneven is not None or not flags:
            return None
    if uneven is not None:
        raise DataError(
            f"{path}: line {uneven + 1} has {len(numbers[uneven])} numbers, others have {width}; expected a 0 or 1 for "
            "each label on every line. If they are names, put semicolons between them."
        )
    return np.array(numbers)
