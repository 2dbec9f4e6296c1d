"""The labels of a split of precomputed features: a matrix of 0 and 1, or a line of names for each image."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polysem.data.problems import DataError

NAMES = "label_names.txt"


def read_labels(folder: Path, split: str, images: int) -> list[tuple[str, ...]] | None:
    """Of each image, or None where the split has no labels.

    `{split}_labels.npy`: (images, labels), 0 or 1; their names stand in `label_names.txt`, one per line, else they are
    called by their number. `{split}_labels.txt`: a line for each image, names separated by semicolons.
    """
    matrix, lines = folder / f"{split}_labels.npy", folder / f"{split}_labels.txt"
    if matrix.is_file():
        return _from_matrix(matrix, folder / NAMES, images)
    if not lines.is_file():
        return None
    rows = _text(lines).splitlines()
    if len(rows) != images:
        raise DataError(f"{lines}: {len(rows)} lines for {images} images; expected one for each.")
    return [tuple(dict.fromkeys(name.strip() for name in row.split(";") if name.strip())) for row in rows]


def _from_matrix(path: Path, names: Path, images: int) -> list[tuple[str, ...]]:
    try:
        flags = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: not a matrix that numpy can read ({error}).") from None
    if flags.ndim != 2 or len(flags) != images or not np.isin(flags, (0, 1)).all():
        raise DataError(f"{path}: expected ({images}, labels) of 0 and 1, got {flags.dtype} of shape {flags.shape}.")
    known = _text(names).split("\n") if names.is_file() else []
    called = [name.strip() for name in known if name.strip()] or [str(number) for number in range(flags.shape[1])]
    if len(called) != flags.shape[1] or len(set(called)) != len(called):
        raise DataError(f"{names}: {len(set(called))} different names for the {flags.shape[1]} columns of {path.name}.")
    return [tuple(called[column] for column in np.flatnonzero(row)) for row in flags]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text ({error}).") from None
