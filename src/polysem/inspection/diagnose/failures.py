"""The queries that go wrong, worst first, with what was answered instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polysem.evaluation.ranking import Ranking
from polysem.evaluation.score_matrix import Scores

SHOWN = 8
ANSWERS = 3


@dataclass(frozen=True)
class Answer:
    """place: in the gallery. item: its position in the collection."""

    place: int
    item: int
    score: float


@dataclass(frozen=True)
class Failure:
    """query: its place among the queries. item: its position in the collection. right, rank: the first right answer's
    place in the gallery, and in the ranking from 1. answers: what came first."""

    query: int
    item: int
    right: int
    rank: int
    answers: tuple[Answer, ...]


def failures(
    ranking: Ranking, scores: Scores, asking: Sequence[int], answering: Sequence[int], most: int = SHOWN
) -> list[Failure]:
    """scores: (queries, gallery). asking, answering: the item of each query and of each answer. One failure of each
    item at most: several captions of a difficult picture are the same story."""
    if ranking.top is None:
        return []
    asked = np.flatnonzero(ranking.relevance.counts > 0)
    ids, values = ranking.top.rank()
    found, told = list[Failure](), set[int]()
    for place in np.argsort(-ranking.first, kind="stable").tolist():
        query, item = int(asked[place]), asking[int(asked[place])]
        if ranking.first[place] == 0 or len(found) == most:
            break
        if item in told:
            continue
        told.add(item)
        positives = ranking.relevance.of(query)
        right = positives[int(scores.tile(np.array([query]), positives)[0].argmax())]
        answers = tuple(
            Answer(answer, answering[answer], float(score))
            for answer, score in zip(ids[query, :ANSWERS].tolist(), values[query, :ANSWERS].tolist(), strict=True)
            if answer >= 0
        )
        found.append(Failure(query, item, int(right), int(ranking.first[place]) + 1, answers))
    return found
