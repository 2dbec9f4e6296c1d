"""Comparison tables as papers print them: several models under one protocol. Data only; `tables` renders it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from polysem.data.collection import Collection
from polysem.errors import ConfigError, InputError, unknown
from polysem.evaluation.evaluate import Store, evaluate
from polysem.evaluation.reports import significance
from polysem.evaluation.result import Evaluation, Stamp, flatten_metrics, read_evaluation

COLUMNS = (*significance.RSUM, "rsum")
"""Columns for pairs; `_default_columns` has those of a protocol of labels."""
DIGITS = 1
"""Decimals in a table. What is equal to these is equally good there."""
_LOWER_IS_BETTER = ("median_rank", "mean_rank", "skewness", "never_returned", "largest_hub")


@dataclass(frozen=True)
class ComparisonCell:
    """One metric of one model.

    Args:
        place: 1 for the best of its column, 2 for the second, as printed; else None.
        p: p-value of being as good as the best of its column, corrected for all models of that column; None: not
            tested.
        is_worse: Whether it is significantly worse than the best.
        difference: 95 % interval of its value minus the best's, the same items drawn for both; None: not tested.
    """

    value: float | None
    interval: tuple[float, float] | None = None
    place: int | None = None
    p: float | None = None
    is_worse: bool = False
    difference: tuple[float, float] | None = None


@dataclass(frozen=True)
class ComparisonRow:
    """One model. embedding: "single", "set 4", "set 4 and 1" where images and texts differ; "" if unknown."""

    model: str
    embedding: str
    cells: Mapping[str, ComparisonCell]


@dataclass(frozen=True)
class Comparison:
    """A table of models under one protocol, which `stamp` describes. Columns are paths of metrics, such as "i2t.r1";
    notes are about single rows. alpha: the p-value below which a difference is significant."""

    stamp: Stamp
    columns: tuple[str, ...]
    rows: tuple[ComparisonRow, ...]
    notes: tuple[str, ...] = ()
    alpha: float = 0.05


def evaluate_all(
    runs: Sequence[str], data: Collection | None, features: Sequence[Store], text_features: Sequence[Store], **how: Any
) -> list[Evaluation]:
    """Evaluate several runs alike, for one table; those that `polysem eval --json` wrote to files are read.

    Args:
        runs: Folders, .npy files of scores, or .json files of evaluations, which need no data.
        features, text_features: Feature stores, one for each run.
        how: `protocol`, `split`, `rescore` and `progress` of `evaluate`.
    """
    evaluations = []
    for run, images, texts in zip(runs, features, text_features, strict=True):
        if run.endswith(".json"):
            evaluations.append(read_evaluation(run))
            continue
        if data is None:
            raise InputError(f"--data is missing: it is what {run} is to be measured on.")
        evaluations.append(evaluate(run, data, features=images, text_features=texts, intervals=False, **how))
    names = [each.model for each in evaluations]
    # Two of one name cannot be told apart in a table: what the user typed can.
    return [
        replace(each, model=run) if names.count(each.model) > 1 else each
        for run, each in zip(runs, evaluations, strict=True)
    ]


def compare(
    evaluations: Sequence[Evaluation], columns: Sequence[str] = COLUMNS, alpha: float = 0.05, seed: int = 0
) -> Comparison:
    """Compare evaluations in one table; each metric is tested against the best of its column.

    Args:
        evaluations: Under one protocol; others are refused (see `compare_separately`).
        columns: Paths of metrics; by default those that the protocol is about.
        alpha: The p-value below which a difference is significant.

    Example:
        >>> from polysem.evaluation import Evaluation, Stamp
        >>> stamp = Stamp("pairs", "flickr8k", "test", 1000, 5000)
        >>> two = [Evaluation(name, stamp, {"rsum": rsum}) for name, rsum in (("single", 410.0), ("set", 423.5))]
        >>> [(row.model, row.cells["rsum"].place) for row in compare(two).rows]
        [('single', 2), ('set', 1)]
    """
    if not evaluations:
        raise InputError("There is nothing to compare: give at least one evaluation.")
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha is a share between 0 and 1, such as 0.05; got {alpha}.")
    if len(_group_by_stamp(evaluations)) > 1:
        stamps = "\n".join(f"  {each.model}: {each.stamp.protocol}, {each.stamp}" for each in evaluations)
        raise InputError(
            f"These were not measured alike, so they cannot share a table:\n{stamps}\n"
            "Measure them under one protocol, or ask for separate tables (polysem compare --separate)."
        )
    evaluations = [
        replace(each, intervals=significance.intervals(each, seed=seed))
        if each.per_query and not each.intervals
        else each
        for each in evaluations
    ]
    values = [flatten_metrics(each.metrics) for each in evaluations]
    values = [{path: float(v) for path, v in each.items() if v is not None and not math.isnan(v)} for each in values]
    if columns is COLUMNS:  # of these, those that the protocol measures
        is_labels = any(each.stamp.protocol.startswith("labels") for each in evaluations)
        columns = _default_columns(list(dict.fromkeys(chain.from_iterable(values))), is_labels)
    table = {path: _column(evaluations, [each.get(path) for each in values], path, alpha, seed) for path in columns}
    rows = tuple(
        ComparisonRow(each.model, embedding_kind(each.facts), {path: cells[row] for path, cells in table.items()})
        for row, each in enumerate(evaluations)
    )
    stamp, notes = _summarise_stamps(evaluations)
    return Comparison(stamp, tuple(columns), rows, notes, alpha)


def _default_columns(known: Sequence[str], is_labels: bool) -> Sequence[str]:
    """Where labels were measured: NDCG and mAP both ways and micro-F1 of each side. Else the recalls and RSUM, or all
    means over queries of a protocol that has none."""
    wanted = re.compile(r"(i2t|t2i)\.(ndcg\d+|map)|micro_f1\.\w+")
    labels = [path for path in known if is_labels and wanted.fullmatch(path)]
    means = [path for path in known if "." in path and not re.search(r"(^|\.)(queries\w*|positives)$", path)]
    return labels or [path for path in COLUMNS if path in known] or means or COLUMNS


def compare_separately(
    evaluations: Sequence[Evaluation], columns: Sequence[str] = COLUMNS, alpha: float = 0.05, seed: int = 0
) -> list[Comparison]:
    """A table for each way of measuring."""
    return [compare(each, columns, alpha, seed) for each in _group_by_stamp(evaluations)]


def embedding_kind(facts: Mapping[str, Any]) -> str:
    """How many vectors represent an item, as tables put it; of an ensemble, what its members have in common."""
    if "members" in facts:
        kinds = {embedding_kind(each) for each in facts["members"]}
        return kinds.pop() if len(kinds) == 1 else "mixed"
    if "set_sizes" not in facts:
        return ""
    images, texts = facts["set_sizes"]
    if images == texts:
        return "single" if images == 1 else f"set {images}"
    return f"set {images} and {texts}"


def _group_by_stamp(evaluations: Sequence[Evaluation]) -> list[list[Evaluation]]:
    groups: dict[Stamp, list[Evaluation]] = {}
    for each in evaluations:
        groups.setdefault(replace(each.stamp, selected_on="", members=1), []).append(each)
    return list(groups.values())


def _summarise_stamps(evaluations: Sequence[Evaluation]) -> tuple[Stamp, tuple[str, ...]]:
    """What holds for all, and notes on what differs."""
    first, notes = evaluations[0].stamp, []
    if len({each.stamp.selected_on for each in evaluations}) > 1:
        first = replace(first, selected_on="different splits")
    if len({each.stamp.members for each in evaluations}) > 1:
        first = replace(first, members=1)
    for each in evaluations:
        chosen, members = each.stamp.selected_on, each.stamp.members
        if chosen != first.selected_on:
            notes.append(f"{each.model}: {'selection unknown' if chosen == 'unknown' else f'selected on {chosen}'}.")
        if members != first.members:
            notes.append(f"{each.model}: mean of {members} models.")
        if not each.per_query and len(evaluations) > 1:
            notes.append(f"{each.model}: not tested, since its file does not hold the values of each query.")
    return first, tuple(notes)


def _column(
    evaluations: Sequence[Evaluation], values: Sequence[float | None], path: str, alpha: float, seed: int
) -> list[ComparisonCell]:
    sign = -1 if path.rpartition(".")[2] in _LOWER_IS_BETTER else 1
    good = {row: sign * value for row, value in enumerate(values) if value is not None}
    if not good:
        raise unknown("metric", path, {name for each in evaluations for name in flatten_metrics(each.metrics)})
    printed = {row: round(value, DIGITS) for row, value in good.items()}
    # A model alone is not the best of anything.
    best = sorted(set(printed.values()), reverse=True)[:2] if len(good) > 1 else []
    # p of each row against the best one, where both have the values of each query.
    top = max(good, key=good.__getitem__)
    needed = set(significance.RSUM if path == "rsum" else (path,))
    paths = [{f"{way}.{name}" for way, q in each.per_query.items() for name in q.values} for each in evaluations]
    known = [row for row, own in enumerate(paths) if needed <= own]
    rows = [row for row in known if row != top and top in known]
    tests = [significance.paired_p(evaluations[top], evaluations[row], path, seed=seed) for row in rows]
    ps = dict(zip(rows, significance.holm(tests), strict=True))
    apart = {row: significance.paired_interval(evaluations[row], evaluations[top], path, seed=seed) for row in rows}
    return [
        ComparisonCell(
            values[row],
            each.intervals.get(path),
            best.index(printed[row]) + 1 if printed.get(row) in best else None,
            ps.get(row),
            ps.get(row, 1.0) < alpha,
            apart.get(row),
        )
        for row, each in enumerate(evaluations)
    ]
