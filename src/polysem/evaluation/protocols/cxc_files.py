"""CxC's own files: `sits_test.csv`, `sts_test.csv`, `sis_test.csv` and the same for val."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polysem.errors import InputError
from polysem.evaluation.protocols.coco_ids import file_number
from polysem.evaluation.relevance import Ints

COLUMNS = {"sits": ("caption", "image"), "sts": ("caption1", "caption2"), "sis": ("image1", "image2")}
SCORES = ("agg_score", "score")
SOURCE = "the folder data of github.com/google-research-datasets/Crisscrossed-Captions"


@dataclass(frozen=True, eq=False)
class Judged:
    """Pairs that people rated from 0 to 5. left, right: (P,) COCO's numbers, in the order of the file's columns."""

    left: Ints
    right: Ints
    scores: npt.NDArray[np.float64]


def read_judged(folder: Path, split: str) -> dict[str, Judged]:
    """By task. The image-text file must be there; the other two may be missing."""
    if split not in ("val", "test"):
        raise InputError(f"CxC judged COCO's val and test splits (Karpathy's), not {split!r}. Name one with --split.")
    paths = {task: folder / f"{task}_{split}.csv" for task in COLUMNS}
    if not paths["sits"].is_file():
        raise InputError(
            f"{folder} has no {paths['sits'].name}. Give a folder of CxC's CSV files, --option annotations=FOLDER: "
            f"{SOURCE}."
        )
    return {task: _read(path, *COLUMNS[task]) for task, path in paths.items() if path.is_file()}


def _read(path: Path, first: str, second: str) -> Judged:
    left, right, scores = [], [], []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            names = list(reader.fieldnames or ())
            rated = next((name for name in SCORES if name in names), None)
            missing = [name for name in (first, second) if name not in names]
            if rated is None or missing:
                given = ", ".join(names) or "none"
                raise InputError(
                    f"{path}: expected the columns {first}, {second} and {SCORES[0]}, got {given}. Take the file "
                    f"without _raw from {SOURCE}."
                )
            for row in reader:
                try:
                    left.append(_number(row[first]))
                    right.append(_number(row[second]))
                    scores.append(float(row[rated]))
                except (TypeError, ValueError):
                    raise InputError(
                        f"{path} line {reader.line_num}: expected two of COCO's ids and a number, got "
                        f"{list(row.values())}."
                    ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}).") from None
    if not scores:
        raise InputError(f"{path} holds no pairs. Take it again from {SOURCE}.")
    return Judged(np.array(left), np.array(right), np.array(scores))


def _number(name: str) -> int:
    """COCO_val2014:sentid:648388 -> 648388, COCO_val2014_000000431431.jpg -> 431431."""
    number = file_number(name)
    return int(name.rsplit(":", 1)[-1]) if number is None else number
