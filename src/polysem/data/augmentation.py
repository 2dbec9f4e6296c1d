"""Size augmentation, as each paper's code does it. Every draw is a function of seed, epoch and item, so that a resumed
run sees the same ones."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

Rng = np.random.Generator


def item_rng(seed: int, epoch: int, item: str) -> Rng:
    """The random generator of one item in one epoch: independent of whatever else was drawn."""
    return np.random.default_rng([seed, epoch, zlib.crc32(item.encode())])


def drop_regions(count: int, rng: Rng, rate: float = 0.2) -> np.ndarray:
    """Indices of the regions to keep: each with probability 1 - rate, on its own.

    The released code can drop them all; here the one with the largest draw stays, because an item is never empty.
    """
    draws = rng.random(count)
    kept = np.flatnonzero(draws > rate)
    return kept if len(kept) else np.array([int(draws.argmax())])


def drop_grid_cells(count: int, rng: Rng, rate: float = 0.2) -> np.ndarray:
    """Indices of the grid cells to keep. The rate itself is drawn: with u ~ U(0, 1), drop rate * u of the cells, or
    none if u <= rate. The mean drop is therefore about 9.6 %, not 20 %."""
    u = rng.random()
    return drop_regions(count, rng, rate * u) if u > rate else np.arange(count)


def mask_words(
    words: Sequence[Sequence[int]],
    rng: Rng,
    mask_id: int,
    vocabulary_size: int,
    rate: float = 0.2,
    protect_ends: bool = True,
) -> list[int]:
    """Token ids of a caption given as words of one or more tokens. Of the 20 % that are drawn, half become <mask> (each
    of their tokens), a tenth become random words of the whole vocabulary, and the rest are deleted.

    protect_ends: leave the first and last word (<start>, <end> or [CLS], [SEP]) alone. VSE∞'s BiGRU code does not.
    """
    kept: list[int] = []
    for position, word in enumerate(words):
        at_end = protect_ends and position in (0, len(words) - 1)
        draw = 1.0 if at_end else rng.random()
        if draw >= rate:
            kept.extend(word)
        elif draw < rate * 0.5:
            kept.extend(mask_id for _ in word)
        elif draw < rate * 0.6:
            kept.extend(int(token) for token in rng.integers(vocabulary_size, size=len(word)))
    # A caption whose every word was deleted keeps its first: an item is never empty.
    return kept or list(words[0])
