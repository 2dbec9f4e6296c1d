"""The words a BiGRU knows, in the JSON layout that SCAN and VSE∞ share."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from polysem import atomic_write
from polysem.data.reader_errors import DataError
from polysem.data.readers.base import read_json
from polysem.data.tokenise import words
from polysem.errors import InputError

PAD, START, END, UNKNOWN, MASK = "<pad>", "<start>", "<end>", "<unk>", "<mask>"
_SPECIAL = (PAD, START, END, UNKNOWN)


class Vocabulary:
    """Words and their ids: 0 <pad>, 1 <start>, 2 <end>, 3 <unk>, then the words; <mask>, if any, stands last.

    Frozen: a model's embedding table has a row for each id, so ids never move.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        if tuple(entries[: len(_SPECIAL)]) != _SPECIAL:
            raise InputError(
                f"A vocabulary begins with {', '.join(_SPECIAL)}; got {', '.join(entries[:4]) or 'nothing'}."
            )
        self.entries = tuple(entries)
        self._ids = {word: i for i, word in enumerate(self.entries)}
        if len(self._ids) != len(self.entries):
            repeated = [word for word, count in Counter(entries).items() if count > 1]
            raise InputError(f"A vocabulary names each word once; repeated: {repeated[:5]}.")

    @classmethod
    def build(cls, captions: Iterable[str], min_count: int = 4, mask: bool = True) -> Self:
        """Words that occur at least `min_count` times, the commonest first. Give it the training captions alone."""
        counts = Counter(word for caption in captions for word in words(caption))
        kept = sorted((word for word, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))
        if not kept:
            raise InputError(
                f"No word occurs {min_count} times or more in these captions ({len(counts)} different words). "
                "Lower min_count, or check that captions were given."
            )
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
        return [self._ids[START], *(self[word] for word in words(text)), self._ids[END]]

    def decode(self, ids: Iterable[int]) -> list[str]:
        return [self.entries[i] for i in ids]

    def save(self, path: Path) -> None:
        """Written whole or not at all."""
        content = {
            "word2idx": self._ids,
            "idx2word": {str(i): word for i, word in enumerate(self.entries)},
            "idx": len(self.entries),
        }
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
