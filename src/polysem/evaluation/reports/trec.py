"""Export of rankings as TREC files, or as dicts for ranx.

Ids. A caption has the name that the data set gives it, or else `<item>#<n>`, n from 0. The files are divided by
blanks, so white space and per cent signs in ids are written as in URLs (`%20`, `%25`); `urllib.parse.unquote` brings
the id back.

Order. Tools sort by score again and break ties by name or arbitrarily, but our metrics put a wrong answer before a
right one of the same score. So equal scores are moved apart by the smallest steps that float32 has: the order is then
the same everywhere, and the scores are still the model's.

What is left out. Queries without a right answer, as in the metrics. And a right answer which equals the last score that
was kept: if wrong answers of that score were not kept, the run would show it too far ahead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from polysem.atomic_write import replace_file
from polysem.data.collection import Collection
from polysem.encoders import caption_keys
from polysem.errors import InputError
from polysem.evaluation.ranking import Ranking
from polysem.evaluation.score_matrix import Floats

DEPTH = 100
"""Answers per query."""
_LARGEST = np.float32(1e38)
"""Leaves room above for scores to be moved apart."""

Ids = Sequence[str]


def export_trec(rankings: Mapping[str, Ranking], gallery: Collection, folder: Path, tag: str = "polysem") -> list[Path]:
    """Write `<direction>.run` and `<direction>.qrels` for each direction, such as "i2t". tag: names the run."""
    if not rankings:
        raise InputError("There is no ranking to write: a protocol of folds has one per fold. Take one without folds.")
    ids = {"i": [item.id for item in gallery], "t": caption_ids(gallery)}
    written: list[Path] = []
    for way, ranking in rankings.items():
        queries, answers = (ids[side] for side in way.split("2"))
        written += write_trec(folder / way, ranking, queries, answers, tag)
    return written


def caption_ids(gallery: Collection) -> list[str]:
    own = [name for item in gallery for name in item.caption_ids]
    if len(own) == len(set(own)) and all(len(item.caption_ids) == len(item.captions) for item in gallery):
        return own
    return caption_keys(gallery)


def write_trec(stem: Path, ranking: Ranking, queries: Ids, gallery: Ids, tag: str = "polysem") -> tuple[Path, Path]:
    """Write `<stem>.qrels` with lines of `query 0 answer 1`, and `<stem>.run` with lines of `query Q0 answer rank score
    tag`, ranks from 1. The ranking must have kept its highest scores. queries, gallery: the ids."""
    paths = stem.with_name(f"{stem.name}.qrels"), stem.with_name(f"{stem.name}.run")
    qrels, run = _name_positives(ranking, queries, gallery), _name_answers(ranking, queries, gallery)
    lines = (
        f"{query} Q0 {answer} {rank} {score:.9g} {escape_id(tag)}\n"
        for query, answers in run
        for rank, (answer, score) in enumerate(answers.items(), 1)
    )
    _write(paths[0], (f"{query} 0 {answer} 1\n" for query, answers in qrels for answer in answers))
    _write(paths[1], lines)
    return paths


def as_ranx(
    ranking: Ranking, queries: Ids, gallery: Ids
) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    """What `ranx.Qrels` and `ranx.Run` are made from, with ids as in the files: {query: {answer: 1 or its score}}."""
    return dict(_name_positives(ranking, queries, gallery)), dict(_name_answers(ranking, queries, gallery))


def escape_id(name: str) -> str:
    """Without white space: as in URLs, but all other letters stay as they are."""
    if not name:
        raise InputError("An empty id cannot be written to a TREC file: give every item one.")
    return re.sub(r"[\s%]", lambda match: quote(match[0], safe=""), name)


def _escape_ids(ranking: Ranking, queries: Ids, gallery: Ids) -> tuple[list[str], list[str]]:
    sides = {"queries": (queries, len(ranking.relevance)), "gallery": (gallery, ranking.relevance.gallery)}
    for what, (ids, expected) in sides.items():
        if len(ids) != expected:
            raise InputError(f"The ranking's {what} number {expected}, and {len(ids)} ids were given.")
        repeated = [name for name, count in Counter(ids).items() if count > 1]
        if repeated:
            raise InputError(f"Ids must tell the {what} apart; {len(repeated)} occur twice, e.g. {repeated[0]!r}.")
    return [escape_id(name) for name in queries], [escape_id(name) for name in gallery]


def _name_positives(ranking: Ranking, queries: Ids, gallery: Ids) -> Iterator[tuple[str, dict[str, int]]]:
    """Every query that has a right answer, with these."""
    names, answer_names = _escape_ids(ranking, queries, gallery)
    for query in np.flatnonzero(ranking.relevance.counts).tolist():
        yield names[query], {answer_names[answer]: 1 for answer in ranking.relevance.of(query)}


def _name_answers(ranking: Ranking, queries: Ids, gallery: Ids) -> Iterator[tuple[str, dict[str, float]]]:
    """Every query that has a right answer, with its answers from best to worst and their scores, all different."""
    names, answer_names = _escape_ids(ranking, queries, gallery)
    if ranking.top is None:
        raise InputError("The ranking kept no scores. Make it with keep=100, or as many answers as the run shall have.")
    ids, values = ranking.top.rank()
    for query in np.flatnonzero(ranking.relevance.counts).tolist():
        kept = ids[query] >= 0
        answers, scores = ids[query][kept], values[query][kept]
        is_right = np.isin(answers, ranking.relevance.of(query))
        order = np.lexsort((answers, is_right, -scores))
        answers, scores, is_right = answers[order], scores[order], is_right[order]
        here = np.flatnonzero(is_right)
        true = ranking.ranks[ranking.relevance.starts[query] :][: len(here)]
        certain = np.delete(np.arange(len(answers)), here[here < true])
        if not len(certain):
            raise InputError(f"Query {queries[query]!r} ties at all {len(answers)} answers kept. Keep more answers.")
        distinct = _make_distinct(scores[certain]).tolist()
        yield names[query], dict(zip((answer_names[answer] for answer in answers[certain]), distinct, strict=True))


def _make_distinct(scores: Floats) -> Floats:
    """The falling scores, made strictly falling in float32: each is raised as little as it takes."""
    bits = np.clip(scores, -_LARGEST, _LARGEST).astype(np.float32).view(np.int32).astype(np.int64)
    # Positions among all float32 numbers: neighbours differ by one, on both sides of zero.
    positions = np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)[::-1]
    steps = np.arange(len(positions))
    raised = (np.maximum.accumulate(positions - steps) + steps)[::-1]
    sign = np.where(raised < 0, np.int64(0x80000000), 0)
    return (np.abs(raised) | sign).astype(np.uint32).view(np.float32)


def _write(path: Path, lines: Iterable[str]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as aside, aside.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror or error}.") from None
