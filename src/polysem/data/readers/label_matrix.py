"""The labels of a split of precomputed features: a matrix of 0 and 1, or a line of names for each image."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polysem.data.reader_errors import DataError
from polysem.data.readers.text import separated_labels

NAMES = "label_names.txt"


def read_labels(
    folder: Path, split: str, images: int, columns: dict[str, int] | None = None
) -> list[tuple[str, ...]] | None:
    """Of each image, or None where the split has no labels. columns: is told how many the matrix of the split has.

    `{split}_labels.npy`: (images, labels), 0 or 1; their names stand in `label_names.txt`, one per line, else they are
    called by their number. `{split}_labels.txt`: a line for each image, with names separated by semicolons, bars or
    commas, or with the row of such a matrix.
    """
    columns = {} if columns is None else columns
    matrix, lines = folder / f"{split}_labels.npy", folder / f"{split}_labels.txt"
    if matrix.is_file():
        return _from_matrix(_loaded(matrix), matrix, folder / NAMES, images, columns)
    if not lines.is_file():
        return None
    rows = _text(lines).splitlines()
    if len(rows) != images:
        raise DataError(f"{lines}: {len(rows)} lines for {images} images; expected one for each.")
    written = _written(rows, lines)
    if written is not None:
        return _from_matrix(written, lines, folder / NAMES, images, columns)
    return [separated_labels(row) for row in rows]


def _loaded(path: Path) -> np.ndarray:
    try:
        flags: np.ndarray = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: not a matrix that numpy can read ({error}).") from None
    return flags


def _written(rows: list[str], path: Path) -> np.ndarray | None:
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


def _from_matrix(
    flags: np.ndarray, path: Path, names: Path, images: int, columns: dict[str, int]
) -> list[tuple[str, ...]]:
    _check_matrix(flags, path, images)
    columns[path.name] = flags.shape[1]
    known = _text(names).split("\n") if names.is_file() else []
    called = [name.strip() for name in known if name.strip()] or [str(number) for number in range(flags.shape[1])]
    if len(called) != flags.shape[1] or len(set(called)) != len(called):
        raise DataError(f"{names}: {len(set(called))} different names for the {flags.shape[1]} columns of {path.name}.")
    return [tuple(called[column] for column in np.flatnonzero(row)) for row in flags]


def _check_matrix(flags: np.ndarray, path: Path, images: int) -> None:
    if flags.ndim != 2 or len(flags) != images:
        raise DataError(
            f"{path}: expected the shape ({images}, labels), got {flags.shape}. "
            "Write a row for each image, a column for each label."
        )
    if flags.dtype.kind not in "biuf":
        raise DataError(f"{path}: expected a matrix of 0 and 1, got {flags.dtype}. Save it as numbers: astype('int8').")
    wrong = np.argwhere(~np.isin(flags, (0, 1)))
    if len(wrong):
        row, column = (int(place) for place in wrong[0])
        raise DataError(
            f"{path}: row {row}, column {column} (counted from 0) is {flags[row, column]:g}; "
            f"expected a matrix of 0 and 1 ({len(wrong)} entries are neither). "
            "Write 1 where the image has the label, 0 where it has not."
        )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text ({error}).") from None
