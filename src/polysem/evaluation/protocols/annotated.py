"""What protocols share whose right answers come from annotators instead of from pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from polysem.errors import InputError
from polysem.evaluation import metrics
from polysem.evaluation.ranking import Progress, Ranking, rank_rows
from polysem.evaluation.relevance import Ints, Relevance
from polysem.evaluation.result import PerQuery
from polysem.evaluation.score_matrix import Floats, Rows, Scores

Values = npt.NDArray[np.float64]


def rank_asked(scores: Scores, relevance: Relevance, *, keep: int = 0, progress: Progress | None = None) -> Ranking:
    """`rank_rows` that spares queries without a right answer, unless their answers are to be kept."""
    asked = np.flatnonzero(relevance.counts)
    if keep or len(asked) == len(relevance):
        return rank_rows(scores, relevance, keep=keep, progress=progress)
    starts = np.append(0, np.cumsum(relevance.counts[asked]))
    part = Relevance(starts, relevance.positives, relevance.gallery)
    found = rank_rows(_Rows(scores, asked), part, progress=progress)
    return Ranking(relevance, found.places)


def relevance_of(
    positives: Mapping[int, Sequence[int]], queries: Ints, gallery: Ints, who: str
) -> tuple[Relevance, Ints]:
    """Right answers by position, and how many of each query's are not in the gallery. queries, gallery: their ids."""
    query_place, place = ({number: i for i, number in enumerate(ids.tolist())} for ids in (queries, gallery))
    unknown = [query for query in positives if query not in query_place]
    if unknown:
        raise InputError(
            f"Protocol {who}: {len(unknown)} of its {len(positives)} annotated queries are not in the gallery, e.g. "
            f"{unknown[0]}. Measure the split that holds them."
        )
    rows, columns = [], []
    lost = np.zeros(len(queries), dtype=np.int64)
    for query, answers in positives.items():
        for answer in set(answers):
            if answer in place:
                rows.append(query_place[query])
                columns.append(place[answer])
            else:
                lost[query_place[query]] += 1
    return Relevance.from_pairs(rows, columns, (len(queries), len(gallery))), lost


def with_lost(ranking: Ranking, lost: Ints) -> Ranking:
    """Right answers that are not in the gallery count as never found. lost: (Q,) how many each query has.

    They make R, the number of right answers, larger: so ECCV Caption's authors count.
    """
    if not lost.any():
        return ranking
    relevance, size = ranking.relevance, ranking.relevance.gallery
    nth = np.arange(lost.sum()) - np.repeat(np.cumsum(lost) - lost, lost)
    queries = np.concatenate([relevance.queries, np.repeat(np.arange(len(lost)), lost)])
    positives = np.concatenate([relevance.positives, size + nth])
    places = np.concatenate([ranking.places, size + nth])
    larger = Relevance.from_pairs(queries, positives, (len(relevance), size + int(lost.max())))
    return Ranking(larger, places[np.lexsort((places, queries))], ranking.best)


def pair_scores(scores: Scores, rows: Ints, columns: Ints) -> Values:
    """(P,) the scores of these pairs alone."""
    found = np.empty(len(rows))
    order = np.argsort(rows, kind="stable")
    for pairs in np.split(order, np.flatnonzero(np.diff(rows[order])) + 1):
        if len(pairs):
            found[pairs] = scores.checked_tile(rows[pairs[:1]], columns[pairs])[0]
    return found


def per_query(ranking: Ranking, owners: Ints | None = None, names: Sequence[str] | None = None) -> PerQuery:
    """owners: the image of each query, for queries that are captions. names: the metrics to keep; None: all."""
    values = metrics.per_query(ranking)
    queries = np.flatnonzero(ranking.relevance.counts)
    kept = {name: values[name] for name in (values if names is None else names)}
    return PerQuery(kept, queries if owners is None else owners[queries])


class _Rows(Scores):
    """Some of the queries, against everything."""

    def __init__(self, whole: Scores, rows: Ints) -> None:
        self.whole, self.rows, self.shape = whole, rows, (len(rows), whole.shape[1])

    def tile(self, images: Rows, texts: Rows) -> Floats:
        return self.whole.tile(self.rows[images], texts)


class WithoutSelf(Scores):
    """Items against themselves, where an item is no answer to itself."""

    def __init__(self, plain: Scores, value: float = -np.inf) -> None:
        """value: what stands for an item's score with itself."""
        self.plain, self.value, self.shape = plain, value, plain.shape

    def tile(self, images: Rows, texts: Rows) -> Floats:
        found = np.array(self.plain.tile(images, texts))
        rows, columns = np.arange(self.shape[0])[images], np.arange(self.shape[1])[texts]
        found[rows[:, None] == columns] = self.value
        return found


def in_turn(progress: Progress | None, parts: int) -> list[Progress | None]:
    """One progress for several passes."""
    if progress is None:
        return [None] * parts
    steps = 1000

    def of(part: int) -> Progress:
        return lambda done, total: progress(steps * part + steps * done // max(1, total), steps * parts)

    return [of(part) for part in range(parts)]
