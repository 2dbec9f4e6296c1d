"""Ranks of all right answers, in both directions with one pass over the scores, a tile at a time.

Nothing is sorted. The rank of a right answer is the number of wrong ones that score as much or more, so it takes the
right answers' own scores, and then counting. A wrong answer with the same score ranks before the right one: ties never
flatter. The batch search of `polysem.search` is not used: it gives the k best, not the rank of every right answer, and
building it for both directions takes longer than one pass (1,000 x 5,000 sets: 2.9 s to 1.0 s of processor time).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from polysem import cpu_blocks
from polysem.errors import InputError
from polysem.evaluation.score_matrix import Floats, Ints, Rows, Scores
from polysem.evaluation.top_k import TopK
from polysem.progress import Progress, ignore, thread_counter

ROWS = 240
"""Images of a tile: as many as a byte can count, and enough for the matrix product."""
COLUMNS = 1280
"""Texts of a tile, about. A tile then stays in the cache while it is counted."""
RUN = 25
"""Tiles that are scored together: larger matrix products are cheaper."""
FEWEST = 64
"""Queries to score together at least, for the same reason."""
_CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Relevance:
    """Positives of Q queries over a gallery, query after query.

    starts: (Q + 1,); those of query q are positives[starts[q] : starts[q + 1]], in ascending order, each once.
    A query may have none: it is then left out of every metric, and counted.
    """

    starts: Ints
    positives: Ints
    gallery: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def counts(self) -> Ints:
        """(Q,) how many positives each query has."""
        return np.diff(self.starts)

    @property
    def queries(self) -> Ints:
        """(P,) the query of each positive."""
        return np.repeat(np.arange(len(self)), self.counts)

    def of(self, query: int) -> Ints:
        return self.positives[self.starts[query] : self.starts[query + 1]]

    @classmethod
    def from_pairs(cls, queries: npt.ArrayLike, positives: npt.ArrayLike, shape: tuple[int, int]) -> Relevance:
        """Pairs in any order, repetitions included. shape: (queries, gallery)."""
        rows, columns = np.asarray(queries, dtype=np.int64).ravel(), np.asarray(positives, dtype=np.int64).ravel()
        if len(rows) != len(columns):
            raise InputError(f"Every positive needs its query: got {len(columns)} positives and {len(rows)} queries.")
        for name, positions, size in (("query", rows, shape[0]), ("positive", columns, shape[1])):
            outside = positions[(positions < 0) | (positions >= size)]
            if len(outside):
                raise InputError(f"{len(outside)} {name} position(s) are not among the {size}, e.g. {outside[0]}.")
        flat = np.unique(rows * shape[1] + columns)
        starts = np.searchsorted(flat, np.arange(shape[0] + 1) * shape[1])
        return cls(starts.astype(np.int64), flat % max(1, shape[1]), shape[1])

    def transpose(self) -> Relevance:
        """The same pairs in the other direction: what was the gallery are now the queries."""
        return Relevance.from_pairs(self.positives, self.queries, (self.gallery, len(self)))


@dataclass(frozen=True, eq=False)
class Ranking:
    """The ranking of one direction: (P,) the rank from 0 of each right answer, sorted within a query, and the highest
    scores of each query, if they were asked for."""

    relevance: Relevance
    ranks: Ints
    top: TopK | None = None

    @property
    def first(self) -> Ints:
        """Rank of the first right answer of each query that has one."""
        return self.ranks[self.relevance.starts[:-1][self.relevance.counts > 0]]


def rank_bidirectional(
    scores: Scores,
    owners: npt.NDArray[np.integer[Any]],
    *,
    folds: int = 1,
    whole: bool = True,
    keep: int = 0,
    progress: Progress = ignore,
) -> tuple[dict[str, Ranking], list[dict[str, Ranking]]]:
    """Rankings "i2t" (image to text) and "t2i": over the whole gallery, and within each of `folds` blocks of
    consecutive images and their texts.

    Args:
        owners: (T,) the image of each text; an image may have any number of them.
        whole: Rank the whole gallery; without it, only what the folds need is scored, and the first answer is empty.
        keep: How many of the highest scores of every query to keep (of the whole gallery).
    """
    grid = _TileGrid(scores, owners, folds)
    both = _RankCounter(grid, keep)
    jobs = [(run, j) for j in range(len(grid.blocks)) for run in grid.runs(j, whole)]
    advance = thread_counter(progress, "ranking", sum(len(run) for run, _ in jobs))
    workers = cpu_blocks.count(_CPU)
    diagonal: dict[int, Floats] = {}

    def score_diagonal(block: int) -> None:
        diagonal[block] = grid.tile(range(block, block + 1), block)
        both.begin(block, diagonal[block])

    cpu_blocks.run([partial(score_diagonal, block) for block in range(len(grid.blocks))], _CPU)
    counters = [both] if workers == 1 else [_RankCounter(grid, keep, both) for _ in range(workers)]

    def count(counter: _RankCounter, parts: Sequence[tuple[range, int]]) -> None:
        for run, j in parts:
            tiles = diagonal.pop(j) if j in run else grid.tile(run, j)
            for i in run:
                first = grid.blocks[i].images[0] - grid.blocks[run[0]].images[0]
                counter.add(i, j, tiles[first : first + len(grid.blocks[i].images)])
            if keep and j not in run and tiles.size:
                counter.top["t2i"].add_columns(grid.images(run), grid.blocks[j].texts, tiles)
            advance(len(run))

    cpu_blocks.run([partial(count, counter, jobs[n :: len(counters)]) for n, counter in enumerate(counters)], _CPU)
    for counter in counters if workers > 1 else ():
        both.merge(counter)
    for top in both.top.values():
        top.flush()
    return both.rank() if whole else {}, [both.rank(fold) for fold in range(folds)] if folds > 1 else []


def rank_rows(scores: Scores, relevance: Relevance, *, keep: int = 0, progress: Progress = ignore) -> Ranking:
    """The ranking of one direction under any relevance, such as annotations: queries are the rows.

    Queries without a right answer are not scored, unless their highest scores are to be kept.
    """
    ranks = np.empty(len(relevance.positives), dtype=np.int64)
    top = TopK(len(relevance), keep)
    rows = max(FEWEST, ROWS * COLUMNS // max(1, scores.shape[1]))
    queries = np.arange(len(relevance)) if keep else np.flatnonzero(relevance.counts)
    blocks = [queries[first : first + rows] for first in range(0, len(queries), rows)]
    advance = thread_counter(progress, "ranking", len(queries))

    def rank_block(block: Ints) -> None:
        tile = scores.checked_tile(_as_slice(block), slice(None))
        for row, query in enumerate(block.tolist()):
            right = relevance.of(query)
            own = -np.sort(-tile[row, right])
            ahead = [np.count_nonzero(tile[row] >= score) for score in own]
            # Minus the right answers among those, plus the right answers that rank before this one.
            at_least = np.searchsorted(-own, -own, side="right")
            ranks[relevance.starts[query] : relevance.starts[query + 1]] = ahead - at_least + np.arange(len(own))
        if keep:
            top.set_rows(block, np.arange(tile.shape[1]), tile)
        advance(len(block))

    cpu_blocks.run([partial(rank_block, block) for block in blocks], _CPU)
    return Ranking(relevance, ranks, top if keep else None)


class _ImageBlock(NamedTuple):
    """Some images and all their texts."""

    images: Ints
    texts: Ints
    fold: int


class _TileGrid:
    """The score matrix cut into tiles of a block's images with a block's texts: matches lie on the diagonal."""

    def __init__(self, scores: Scores, owners: npt.NDArray[np.integer[Any]], folds: int) -> None:
        self.scores, self.owners, (images, texts) = scores, np.asarray(owners, dtype=np.int64), scores.shape
        if self.owners.shape != (texts,):
            raise InputError(f"Each of the {texts} texts needs its image; got owners of shape {self.owners.shape}.")
        if not 1 <= folds <= images:
            raise InputError(f"{images} images cannot be divided into {folds} folds.")
        self.i2t = Relevance.from_pairs(self.owners, np.arange(texts), (images, texts))
        self.blocks: list[_ImageBlock] = []
        order, starts = np.argsort(self.owners, kind="stable"), self.i2t.starts
        rows = max(1, min(ROWS, COLUMNS * images // max(1, texts)))
        for fold, members in enumerate(np.array_split(np.arange(images), folds)):
            for part in np.array_split(members, -(-len(members) // rows)):
                self.blocks.append(_ImageBlock(part, order[starts[part[0]] : starts[part[-1] + 1]], fold))

    def runs(self, j: int, whole: bool) -> Iterator[range]:
        """Neighbouring blocks of images to score with the texts of block j; block j itself is a run of its own, since
        its scores are known by then."""
        first, last = 0, len(self.blocks)
        if not whole:
            same = [i for i, block in enumerate(self.blocks) if block.fold == self.blocks[j].fold]
            first, last = same[0], same[-1] + 1
        for start, end in ((first, j), (j + 1, last)):
            yield from (range(i, min(i + RUN, end)) for i in range(start, end, RUN))
        yield range(j, j + 1)

    def tile(self, run: range, j: int) -> Floats:
        return self.scores.checked_tile(_as_slice(self.images(run)), _as_slice(self.blocks[j].texts))

    def images(self, run: range) -> Ints:
        return np.arange(self.blocks[run[0]].images[0], self.blocks[run[-1]].images[-1] + 1)


class _RankCounter:
    """How many scores reach those of the right answers, in rows, in columns and within folds."""

    def __init__(self, grid: _TileGrid, keep: int, known: _RankCounter | None = None) -> None:
        """known: another counter, whose scores of the right answers to use."""
        self.grid, self.keep = grid, keep
        texts = len(grid.owners)
        self.own: Floats = np.empty(texts, dtype=np.float64) if known is None else known.own
        """The score of each text with its image."""
        self.counts = {name: np.zeros(texts, dtype=np.int64) for name in ("i2t", "t2i", "i2t in fold", "t2i in fold")}
        images, texts = grid.scores.shape
        self.top: dict[str, TopK] = {
            way: TopK(size, keep, None if known is None else known.top[way].floor)
            for way, size in (("i2t", images), ("t2i", texts))
        }

    def begin(self, number: int, tile: Floats) -> None:
        """The tile of a block's images with their own texts."""
        block = self.grid.blocks[number]
        if not tile.size:
            return
        self.own[block.texts] = tile[self.grid.owners[block.texts] - block.images[0], np.arange(len(block.texts))]
        if self.keep:
            self.top["i2t"].set_rows(block.images, block.texts, tile)
            self.top["t2i"].set_rows(block.texts, block.images, np.ascontiguousarray(tile.T))

    def add(self, i: int, j: int, tile: Floats) -> None:
        block, (_, texts, fold) = self.grid.blocks[i], self.grid.blocks[j]
        if not tile.size:
            return
        ways = ("", " in fold") if block.fold == fold else ("",)
        # (i, t) -> (t,), i at most 255: bytes are added, eight at a time or more.
        hits = (tile >= self.own[texts].astype(tile.dtype)).view(np.uint8)
        for way in ways:
            self.counts[f"t2i{way}"][texts] += np.add.reduce(hits, axis=0, dtype=np.uint8)
        starts, counts = self.grid.i2t.starts[block.images], self.grid.i2t.counts[block.images]
        for nth in range(int(counts.max(initial=0))):  # the first text of each image, then the second, …
            rows = np.flatnonzero(counts > nth)
            own = self.grid.i2t.positives[starts[rows] + nth]
            part = tile if len(rows) == len(counts) else tile[rows]
            reached = _count_across(part >= self.own[own].astype(tile.dtype)[:, None])
            for way in ways:
                self.counts[f"i2t{way}"][own] += reached
        if self.keep and i != j:
            self.top["i2t"].add_rows(block.images, texts, tile)

    def merge(self, other: _RankCounter) -> None:
        for name, counts in other.counts.items():
            self.counts[name] += counts
        for name, top in other.top.items():
            self.top[name].merge(top)

    def rank(self, fold: int | None = None) -> dict[str, Ranking]:
        """Over the whole gallery, or within a fold: images and texts keep their order there, but count from 0."""
        blocks = [block for block in self.grid.blocks if fold in (None, block.fold)]
        way, top = ("", self.top if self.keep else {}) if fold is None else (" in fold", {})
        texts = np.sort(np.concatenate([block.texts for block in blocks]))
        shape = (sum(len(block.images) for block in blocks), len(texts))
        i2t = Relevance.from_pairs(self.grid.owners[texts] - blocks[0].images[0], np.arange(len(texts)), shape)
        # From how many scores reach each right answer's to its rank among all, query by query.
        score, reached = self.own[texts][i2t.positives], self.counts[f"i2t{way}"][texts][i2t.positives]
        order = np.lexsort((-score, i2t.queries))
        score, reached = score[order], reached[order]
        nth = np.arange(len(score)) - np.repeat(i2t.starts[:-1], i2t.counts)
        # How many right answers of the query score as much or more: up to the last of those with the same score.
        last = np.append((score[1:] != score[:-1]) | (np.diff(i2t.queries) != 0), True)
        at_least = nth[np.flatnonzero(last)[np.cumsum(np.append(0, last[:-1]))]] + 1 if len(score) else nth
        return {
            "i2t": Ranking(i2t, reached - at_least + nth, top.get("i2t")),
            # The text's own image reaches its own score too.
            "t2i": Ranking(i2t.transpose(), self.counts[f"t2i{way}"][texts] - 1, top.get("t2i")),
        }


def _count_across(hits: npt.NDArray[np.bool_]) -> Ints:
    """(i, t) -> (i,). Eight bytes are added as one word: no byte may come to 256, so at most 255 words at a time."""
    words = hits.shape[1] // 8
    total: Ints = hits[:, 8 * words :].sum(1, dtype=np.int64)
    eights = np.ascontiguousarray(hits[:, : 8 * words]).view(np.uint64)  # copies only where it must
    for first in range(0, words, 255):
        part = np.add.reduce(eights[:, first : first + 255], axis=1)
        total += part[:, None].view(np.uint8).sum(1, dtype=np.int64)
    return total


def _as_slice(positions: Ints) -> Rows:
    """Consecutive positions as a slice: then nothing is copied."""
    if len(positions) and positions[-1] - positions[0] == len(positions) - 1 and bool((np.diff(positions) == 1).all()):
        return slice(int(positions[0]), int(positions[-1]) + 1)
    return positions
