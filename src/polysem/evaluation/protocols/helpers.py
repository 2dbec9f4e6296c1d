"""What several protocols share: rankings under annotated relevance, merged texts, values of each query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polysem.data.collection import Collection
from polysem.errors import InputError
from polysem.evaluation import metrics
from polysem.evaluation.metrics import Values
from polysem.evaluation.ranking import BidirectionalRanking, Ranking, rank_rows
from polysem.evaluation.relevance import Ints, Relevance
from polysem.evaluation.result import PerQuery
from polysem.evaluation.score_matrix import Floats, Rows, Scores
from polysem.evaluation.top_k import TopK
from polysem.progress import Progress, ignore, section


def rank_annotated(scores: Scores, relevance: Relevance, *, keep: int = 0, progress: Progress = ignore) -> Ranking:
    """`rank_rows` without the queries that have no right answer, unless their answers are to be kept."""
    asked = np.flatnonzero(relevance.counts)
    if keep or len(asked) == len(relevance):
        return rank_rows(scores, relevance, keep=keep, progress=progress)
    starts = np.append(0, np.cumsum(relevance.counts[asked]))
    subset = Relevance(starts, relevance.positives, relevance.gallery)
    return Ranking(relevance, rank_rows(scores.subset(asked, None), subset, progress=progress).ranks)


def relevance_from_ids(
    positives: Mapping[int, Sequence[int]], queries: Ints, gallery: Ints, who: str
) -> tuple[Relevance, Ints]:
    """Right answers by position, and (Q,) how many of each query's are not in the gallery.

    Args:
        positives: Ids of right answers by the query's id.
        queries, gallery: Ids, by position.
        who: The protocol, for messages.
    """
    row, column = ({number: i for i, number in enumerate(ids.tolist())} for ids in (queries, gallery))
    unknown = [query for query in positives if query not in row]
    if unknown:
        raise InputError(
            f"Protocol {who}: {len(unknown)} of its {len(positives)} annotated queries are not in the gallery, e.g. "
            f"{unknown[0]}. Measure the split that holds them."
        )
    rows, columns = [], []
    missing = np.zeros(len(queries), dtype=np.int64)
    for query, answers in positives.items():
        for answer in set(answers):
            if answer in column:
                rows.append(row[query])
                columns.append(column[answer])
            else:
                missing[row[query]] += 1
    return Relevance.from_pairs(rows, columns, (len(queries), len(gallery))), missing


def add_missing_positives(ranking: Ranking, missing: Ints) -> Ranking:
    """Count right answers that are not in the gallery as never found. missing: (Q,) how many each query has.

    They make R, the number of right answers, larger: so ECCV Caption's authors count.
    """
    if not missing.any():
        return ranking
    relevance, size = ranking.relevance, ranking.relevance.gallery
    nth = np.arange(missing.sum()) - np.repeat(np.cumsum(missing) - missing, missing)
    queries = np.concatenate([relevance.queries, np.repeat(np.arange(len(missing)), missing)])
    positives = np.concatenate([relevance.positives, size + nth])
    ranks = np.concatenate([ranking.ranks, size + nth])
    larger = Relevance.from_pairs(queries, positives, (len(relevance), size + int(missing.max())))
    return Ranking(larger, ranks[np.lexsort((ranks, queries))], ranking.top)


def pair_scores(scores: Scores, rows: Ints, columns: Ints) -> Values:
    """(P,) the scores of these pairs alone."""
    values = np.empty(len(rows))
    order = np.argsort(rows, kind="stable")
    for pairs in np.split(order, np.flatnonzero(np.diff(rows[order])) + 1):
        if len(pairs):
            values[pairs] = scores.checked_tile(rows[pairs[:1]], columns[pairs])[0]
    return values


def per_query_metrics(
    rankings: Sequence[Ranking], owners: Ints | None = None, names: Sequence[str] | None = None
) -> PerQuery:
    """The metrics of every query that has a right answer.

    Args:
        rankings: Of one direction; those of several folds follow each other.
        owners: The image of each query, for queries that are captions.
        names: The metrics to keep; None: all.
    """
    values = [metrics.query_metrics(ranking) for ranking in rankings]
    queries = np.flatnonzero(np.concatenate([ranking.relevance.counts for ranking in rankings]))
    joined = {name: np.concatenate([each[name] for each in values]) for name in names or values[0]}
    return PerQuery(joined, queries if owners is None else owners[queries])


class OffDiagonalScores(Scores):
    """Scores of items with themselves, where an item is no answer to itself.

    Args:
        value: What replaces an item's score with itself.
    """

    def __init__(self, plain: Scores, value: float = -np.inf) -> None:
        self.plain, self.value, self.shape = plain, value, plain.shape

    def tile(self, images: Rows, texts: Rows) -> Floats:
        tile = np.array(self.plain.tile(images, texts))
        rows, columns = np.arange(self.shape[0])[images], np.arange(self.shape[1])[texts]
        tile[rows[:, None] == columns] = self.value
        return tile


@dataclass(frozen=True, eq=False)
class SearchedTexts:
    """The captions of a collection that are searched: all, or each distinct one once.

    Args:
        captions: How many captions there are.
        kept: (U,) positions of those that are searched, ascending: the first stands for all that read the same.
        owners: (U,) the item of each, the first if it has several.
        i2t: Which of the kept ones are right for each item.
    """

    captions: int
    kept: Ints
    owners: Ints
    i2t: Relevance

    @classmethod
    def of(cls, gallery: Collection, *, unique: bool) -> SearchedTexts:
        """unique: merge captions that are equal character by character."""
        captions, owners = gallery.captions, gallery.caption_items
        if unique:
            numbers: dict[str, int] = {}
            number = np.array([numbers.setdefault(caption, len(numbers)) for caption in captions], dtype=np.int64)
            kept = np.unique(number, return_index=True)[1]
        else:
            number = kept = np.arange(len(captions))
        i2t = Relevance.from_pairs(owners, number, (len(gallery), len(kept)))
        return cls(len(captions), kept, owners[kept], i2t)

    def scores(self, scores: Scores) -> Scores:
        """Of the kept texts alone."""
        return scores.subset(None, self.kept) if len(self.kept) < self.captions else scores

    def rank(self, scores: Mapping[str, Scores], keep: int, progress: Progress = ignore) -> BidirectionalRanking:
        """scores: Of the kept texts, as `EvaluationTask.directed_scores` gives them."""
        i2t, t2i, keep = self.i2t, self.i2t.transpose(), max(keep, metrics.DEPTH)
        total = len(i2t) + len(t2i)
        return BidirectionalRanking(
            rank_rows(scores["i2t"], i2t, keep=keep, progress=section(progress, 0, len(i2t), total)),
            rank_rows(scores["t2i"], t2i, keep=keep, progress=section(progress, len(i2t), len(t2i), total)),
        )

    def expand(self, rankings: BidirectionalRanking) -> dict[str, Ranking]:
        """The rankings with texts numbered as in the collection; those that were merged away are no queries."""
        i2t, t2i = rankings.i2t, rankings.t2i
        shape = (len(self.i2t), self.captions)
        right = Relevance.from_pairs(i2t.relevance.queries, self.kept[i2t.relevance.positives], shape)
        return {
            "i2t": Ranking(right, i2t.ranks, None if i2t.top is None else self._expand_answers(i2t.top)),
            "t2i": Ranking(right.transpose(), t2i.ranks, None if t2i.top is None else self._expand_queries(t2i.top)),
        }

    def _expand_answers(self, top: TopK) -> TopK:
        expanded = TopK(len(top.ids), top.k)
        expanded.values, expanded.ids = top.values, np.where(top.ids < 0, -1, self.kept[top.ids])
        return expanded

    def _expand_queries(self, top: TopK) -> TopK:
        expanded = TopK(self.captions, top.k)
        expanded.values[self.kept], expanded.ids[self.kept] = top.values, top.ids
        return expanded
