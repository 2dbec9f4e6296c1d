"""Where every right answer stands, for both directions in one pass over the scores, a tile at a time.

Nothing is sorted. The place of a right answer is the number of wrong ones that score as much or more, so what it takes
is the right answers' own scores, and then counting. A wrong answer with the same score stands before the right one:
ties never flatter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from polysem import cpu_blocks
from polysem.errors import InputError
from polysem.evaluation.relevance import Ints, Relevance
from polysem.evaluation.score_matrix import Floats, Rows, Scores
from polysem.evaluation.top_k import Best

ROWS = 240
"""Images of a tile: as many as a byte can count, and enough for the matrix product."""
COLUMNS = 1280
"""Texts of a tile, about. A tile then stays in the cache while it is counted."""
RUN = 25
"""Tiles that are scored together: larger matrix products are cheaper."""
FEWEST = 64
"""Queries to score together at least, for the same reason."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Ranking:
    """One direction's result.

    relevance: what was right. places: (P,) for each of its positives, sorted within a query, the place in the ranking
    from 0. best: for each query the positions of its highest scores, if they were asked for.
    """

    relevance: Relevance
    places: Ints
    best: Best | None = None

    @property
    def first(self) -> Ints:
        """Place of the first right answer of each query that has one."""
        return self.places[self.relevance.starts[:-1][self.relevance.counts > 0]]


@dataclass(frozen=True, eq=False)
class BothWays:
    i2t: Ranking
    t2i: Ranking


def rank_both_ways(
    scores: Scores,
    owners: npt.NDArray[np.integer[Any]],
    *,
    folds: int = 1,
    whole: bool = True,
    keep: int = 0,
    progress: Progress | None = None,
) -> tuple[BothWays | None, list[BothWays]]:
    """Rankings over the whole gallery, and within each of `folds` equal stretches of images and their texts.

    owners: (T,) the image of each text; an image may have any number of them. keep: how many of the highest scores of
    every query to remember (of the whole gallery). Without `whole` only what the folds need is scored.
    """
    grid = _Grid.of(scores, owners, folds)
    both = _Count(grid, keep)
    wanted = [(run, j) for j in range(len(grid.blocks)) for run in grid.runs(j, whole)]
    total = sum(len(run) for run, _ in wanted)
    done, lock = 0, threading.Lock()

    def report(tiles: int) -> None:
        nonlocal done
        with lock:
            done += tiles
            if progress is not None:
                progress(done, total)

    device = torch.device("cpu")
    workers = cpu_blocks.count(device)
    diagonal: dict[int, Floats] = {}

    def matches(block: int) -> None:
        diagonal[block] = grid.tile(range(block, block + 1), block)
        both.begin(block, diagonal[block])

    cpu_blocks.run([partial(matches, block) for block in range(len(grid.blocks))], device)
    lanes = [both] if workers == 1 else [_Count(grid, keep, both) for _ in range(workers)]

    def count(lane: _Count, parts: Sequence[tuple[range, int]]) -> None:
        for run, j in parts:
            tiles = diagonal.pop(j) if j in run else grid.tile(run, j)
            for i in run:
                first = grid.blocks[i].images[0] - grid.blocks[run[0]].images[0]
                lane.add(i, j, tiles[first : first + len(grid.blocks[i].images)])
            if keep and j not in run and tiles.size:
                lane.best["t2i"].offer_columns(grid.images(run), grid.blocks[j].texts, tiles)
            report(len(run))

    cpu_blocks.run([partial(count, lane, wanted[place :: len(lanes)]) for place, lane in enumerate(lanes)], device)
    for lane in lanes:
        if lane is not both:
            both.join(lane)
    for best in both.best.values():
        best.settle()
    return both.whole() if whole else None, [both.fold(number) for number in range(folds)] if folds > 1 else []


def rank_rows(scores: Scores, relevance: Relevance, *, keep: int = 0, progress: Progress | None = None) -> Ranking:
    """One direction, whatever is right: queries are the rows. For annotations that are no pairing."""
    places = np.empty(len(relevance.positives), dtype=np.int64)
    best = Best(len(relevance), keep)
    rows = max(FEWEST, ROWS * COLUMNS // max(1, scores.shape[1]))
    blocks = [range(i, min(i + rows, len(relevance))) for i in range(0, len(relevance), rows)]
    done, lock = 0, threading.Lock()

    def one(block: range) -> None:
        nonlocal done
        tile = scores.checked_tile(slice(block.start, block.stop), slice(None))
        for place, query in enumerate(block):
            right = relevance.of(query)
            own = -np.sort(-tile[place, right])
            ahead = [np.count_nonzero(tile[place] >= score) for score in own]
            # Minus the right answers among those, plus the right answers that stand before this one.
            at_least = np.searchsorted(-own, -own, side="right")
            places[relevance.starts[query] : relevance.starts[query + 1]] = ahead - at_least + np.arange(len(own))
        if keep:
            best.begin_rows(np.asarray(block), np.arange(tile.shape[1]), tile)
        with lock:
            done += len(block)
            if progress is not None:
                progress(done, len(relevance))

    cpu_blocks.run([partial(one, block) for block in blocks], torch.device("cpu"))
    return Ranking(relevance, places, best if keep else None)


@dataclass(frozen=True, eq=False)
class _Block:
    """Some images and all their texts."""

    images: Ints
    texts: Ints
    fold: int


@dataclass(frozen=True, eq=False)
class _Grid:
    """The score matrix cut into tiles of a block's images with a block's texts: matches lie on the diagonal."""

    scores: Scores
    owners: Ints
    blocks: list[_Block]
    i2t: Relevance

    @classmethod
    def of(cls, scores: Scores, owners: npt.NDArray[np.integer[Any]], folds: int) -> _Grid:
        images, texts = scores.shape
        image_of: Ints = np.asarray(owners, dtype=np.int64)
        if image_of.shape != (texts,):
            raise InputError(f"Each of the {texts} texts needs its image; got owners of shape {image_of.shape}.")
        if not 1 <= folds <= images:
            raise InputError(f"{images} images cannot be divided into {folds} folds.")
        i2t = Relevance.from_pairs(image_of, np.arange(len(image_of)), (images, texts))
        order = np.argsort(image_of, kind="stable")
        starts = i2t.starts
        blocks = []
        rows = max(1, min(ROWS, COLUMNS * images // max(1, texts)))
        for fold, members in enumerate(np.array_split(np.arange(images), folds)):
            for part in np.array_split(members, max(1, -(-len(members) // rows))):
                if len(part):
                    blocks.append(_Block(part, order[starts[part[0]] : starts[part[-1] + 1]], fold))
        return cls(scores, image_of, blocks, i2t)

    def same_fold(self, i: int, j: int) -> bool:
        return self.blocks[i].fold == self.blocks[j].fold

    def runs(self, j: int, whole: bool) -> Iterator[range]:
        """Neighbouring blocks of images to score with the texts of block j; block j itself is a run of its own, since
        its scores are known by then."""
        first, last = 0, len(self.blocks)
        if not whole:
            same = [i for i in range(last) if self.same_fold(i, j)]
            first, last = same[0], same[-1] + 1
        for start, end in ((first, j), (j + 1, last)):
            yield from (range(i, min(i + RUN, end)) for i in range(start, end, RUN))
        yield range(j, j + 1)

    def tile(self, run: range, j: int) -> Floats:
        return self.scores.checked_tile(_stretch(self.images(run)), _stretch(self.blocks[j].texts))

    def images(self, run: range) -> Ints:
        return np.arange(self.blocks[run[0]].images[0], self.blocks[run[-1]].images[-1] + 1)


class _Count:
    """How many scores reach those of the right answers, in rows, in columns and within folds."""

    def __init__(self, grid: _Grid, keep: int, known: _Count | None = None) -> None:
        """known: whose right answers' scores to use."""
        self.grid, self.keep = grid, keep
        texts = len(grid.owners)
        self.own: Floats = np.empty(texts, dtype=np.float64) if known is None else known.own
        """The score of each text with its image."""
        self.counts = {name: np.zeros(texts, dtype=np.int64) for name in ("i2t", "t2i", "i2t in fold", "t2i in fold")}
        images, texts = grid.scores.shape
        self.best: dict[str, Best] = {
            way: Best(size, keep, None if known is None else known.best[way].floor)
            for way, size in (("i2t", images), ("t2i", texts))
        }

    def begin(self, number: int, tile: Floats) -> None:
        """The tile of a block's images with their own texts."""
        block = self.grid.blocks[number]
        if not tile.size:
            return
        self.own[block.texts] = tile[self.grid.owners[block.texts] - block.images[0], np.arange(len(block.texts))]
        if self.keep:
            self.best["i2t"].begin_rows(block.images, block.texts, tile)
            self.best["t2i"].begin_rows(block.texts, block.images, np.ascontiguousarray(tile.T))

    def add(self, i: int, j: int, tile: Floats) -> None:
        block, texts = self.grid.blocks[i], self.grid.blocks[j].texts
        if not tile.size:
            return
        same = self.grid.same_fold(i, j)
        reached = _count_down(tile >= self.own[texts].astype(tile.dtype))
        for name in ("t2i", "t2i in fold") if same else ("t2i",):
            self.counts[name][texts] += reached
        for own, rows, threshold in self._thresholds(block, tile.dtype):
            reached = _count_across((tile if rows is None else tile[rows]) >= threshold[:, None])
            for name in ("i2t", "i2t in fold") if same else ("i2t",):
                self.counts[name][own] += reached
        if self.keep and i != j:
            self.best["i2t"].offer_rows(block.images, texts, tile)

    def _thresholds(self, block: _Block, dtype: Any) -> Iterator[tuple[Ints, Ints | None, Floats]]:
        """The first text of each image and its score, then the second, ….: texts, rows (None: all) and scores."""
        starts, counts = self.grid.i2t.starts[block.images], self.grid.i2t.counts[block.images]
        for nth in range(int(counts.max(initial=0))):
            rows = np.flatnonzero(counts > nth)
            own = self.grid.i2t.positives[starts[rows] + nth]
            yield own, None if len(rows) == len(counts) else rows, self.own[own].astype(dtype)

    def join(self, other: _Count) -> None:
        for name, found in other.counts.items():
            self.counts[name] += found
        for name, best in other.best.items():
            self.best[name].join(best)

    def whole(self) -> BothWays:
        grid = self.grid
        best = self.best if self.keep else {}
        i2t = Ranking(grid.i2t, self._places(grid.i2t, self.counts["i2t"]), best.get("i2t"))
        # The text's own image reaches its own score too.
        t2i = grid.i2t.transposed()
        return BothWays(i2t, Ranking(t2i, self.counts["t2i"] - 1, best.get("t2i")))

    def fold(self, number: int) -> BothWays:
        """Within one fold; images and texts keep their order there, but are numbered from 0."""
        images = np.concatenate([block.images for block in self.grid.blocks if block.fold == number])
        texts = np.sort(np.concatenate([block.texts for block in self.grid.blocks if block.fold == number]))
        owners = self.grid.owners[texts] - images[0]
        i2t = Relevance.from_pairs(owners, np.arange(len(texts)), (len(images), len(texts)))
        places = self._places(i2t, self.counts["i2t in fold"][texts], self.own[texts])
        return BothWays(Ranking(i2t, places), Ranking(i2t.transposed(), self.counts["t2i in fold"][texts] - 1))

    def _places(self, relevance: Relevance, counts: Ints, own: Floats | None = None) -> Ints:
        """From how many scores reach each right answer's to its place among all, query by query."""
        own = self.own if own is None else own
        score, reached = own[relevance.positives], counts[relevance.positives]
        order = np.lexsort((-score, relevance.queries))
        score, reached = score[order], reached[order]
        nth = np.arange(len(score)) - np.repeat(relevance.starts[:-1], relevance.counts)
        # How many right answers of the query score as much or more: up to the last of those with the same score.
        last = np.append((score[1:] != score[:-1]) | (np.diff(relevance.queries) != 0), True)
        at_least = nth[np.flatnonzero(last)[np.cumsum(np.append(0, last[:-1]))]] + 1 if len(score) else nth
        places: Ints = reached - at_least + nth
        return places


def _count_down(hits: npt.NDArray[np.bool_]) -> Ints:
    """(i, t) -> (t,), i at most 255: bytes are added, eight at a time or more."""
    found: Ints = np.add.reduce(hits.view(np.uint8), axis=0, dtype=np.uint8).astype(np.int64)
    return found


def _count_across(hits: npt.NDArray[np.bool_]) -> Ints:
    """(i, t) -> (i,). Eight bytes are added as one word: no byte may come to 256, so at most 255 words at a time."""
    columns = hits.shape[1]
    words = columns // 8
    total: Ints = hits[:, 8 * words :].sum(1, dtype=np.int64)
    eights = hits[:, : 8 * words].view(np.uint64) if hits.flags.c_contiguous and columns % 8 == 0 else None
    if eights is None:
        eights = np.ascontiguousarray(hits[:, : 8 * words]).view(np.uint64)
    for first in range(0, words, 255):
        part = np.add.reduce(eights[:, first : first + 255], axis=1)
        total += part[:, None].view(np.uint8).sum(1, dtype=np.int64)
    return total


def _stretch(places: Ints) -> Rows:
    """Neighbours in order as a slice: then nothing is copied."""
    if len(places) and places[-1] - places[0] == len(places) - 1 and bool((np.diff(places) == 1).all()):
        return slice(int(places[0]), int(places[-1]) + 1)
    return places
