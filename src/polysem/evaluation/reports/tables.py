"""Comparison tables for terminals, in Markdown, LaTeX and JSON, each with its protocol stamp."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from polysem.evaluation.reports.compare import DIGITS, Comparison, ComparisonCell

WAYS = {"i2t": "image → text", "t2i": "text → image", "i2i": "image → image", "t2t": "text → text"}
METRICS = {
    "rsum": "RSUM",
    "map_at_r": "mAP@R",
    "r_precision": "R-Precision",
    "map": "mAP",
    "mrr": "MRR",
    "ndcg10": "NDCG@10",
    "median_rank": "MedR",
    "mean_rank": "MeanR",
}
_AT = {"r": "R", "recall": "Recall", "ndcg": "NDCG", "precision": "P"}
MARK = "†"
EMPTY = "–"
_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "[": "{[}",  # which after a line's end would be taken for its height
    "]": "{]}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "×": r"$\times$",
    "→": r"$\to$",
    MARK: r"$^{\dagger}$",
    EMPTY: "--",
}


def as_rich(comparison: Comparison, styled: bool = True) -> Table:
    """styled: mark by bold and underlined; else, for what is no terminal, as Markdown does."""
    marks = ("Bold", "underlined") if styled else ("**", "*")
    table = Table("Model", "Embedding", title=Text(str(comparison.stamp)), title_justify="left")
    table.caption, table.caption_justify = Text("\n".join(legend(comparison, *marks))), "left"
    for path in comparison.columns:
        table.add_column(f"{_short(path)}\n{metric_name(path)}", justify="right")
    for row in comparison.rows:
        cells = (_rich_cell(comparison, row.cells[path], path, styled) for path in comparison.columns)
        table.add_row(Text(row.model), row.embedding, *cells)
    return table


def as_plain(comparison: Comparison) -> str:
    """The terminal's table for a file, as wide as it needs to be."""
    console = Console(file=io.StringIO(), width=500, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(as_rich(comparison, styled=False))
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def as_markdown(comparison: Comparison) -> str:
    headings = (f"{_short(path)} {metric_name(path)}".strip() for path in comparison.columns)
    lines = [
        f"{_escape_markdown(str(comparison.stamp))}\n",
        _markdown_row(["Model", "Embedding", *headings]),
        _markdown_row([":--", ":--", *("--:" for _ in comparison.columns)]),
    ]
    for row in comparison.rows:
        cells = (_cell(comparison, row.cells[path], path, _markdown_mark) for path in comparison.columns)
        lines.append(_markdown_row([_escape_markdown(row.model), row.embedding, *cells]))
    notes = (_escape_markdown(note) for note in legend(comparison, "Bold", "italic"))
    return "\n".join([*lines, "", *(f"{note}  " for note in notes)]).rstrip() + "\n"


def as_latex(comparison: Comparison) -> str:
    """For booktabs."""
    groups = [(name, len(list(paths))) for name, paths in groupby(comparison.columns, _direction)]
    above, rules, column = ["", ""], [], 3
    for name, width in groups:
        above.append(rf"\multicolumn{{{width}}}{{c}}{{{_escape_latex(name)}}}")
        if name:
            rules.append(rf"\cmidrule(lr){{{column}-{column + width - 1}}}")
        column += width
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escape_latex(str(comparison.stamp))}.}}",
        rf"\begin{{tabular}}{{ll{'r' * len(comparison.columns)}}}",
        r"\toprule",
        _latex_row(above),
        " ".join(rules),
        _latex_row(["Model", "Embedding", *(_escape_latex(metric_name(path)) for path in comparison.columns)]),
        r"\midrule",
    ]
    for row in comparison.rows:
        cells = (_cell(comparison, row.cells[path], path, _latex_mark) for path in comparison.columns)
        latex = [cell.replace(MARK, _LATEX[MARK]).replace(EMPTY, _LATEX[EMPTY]) for cell in cells]
        lines.append(_latex_row([_escape_latex(row.model), _escape_latex(row.embedding), *latex]))
    lines += [r"\bottomrule", r"\end{tabular}", ""]
    notes = (_escape_latex(note) for note in legend(comparison, "Bold", "underlined"))
    lines += [rf"\par\smallskip{{\footnotesize {note}}}" for note in notes]
    return "\n".join([*(line for line in lines if line), r"\end{table}"]) + "\n"


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """JSON-able."""
    return {
        "protocol": comparison.stamp.as_dict(),
        "columns": list(comparison.columns),
        "rows": [asdict(row) for row in comparison.rows],
        "alpha": comparison.alpha,
        "notes": list(comparison.notes),
    }


def legend(comparison: Comparison, best: str, second: str) -> list[str]:
    """What the marks mean, for those that occur. best, second: how those figures are marked."""
    cells = [cell for row in comparison.rows for cell in row.cells.values()]
    notes = []
    if any(cell.place for cell in cells):
        notes.append(f"{best}: best of the column; {second}: second.")
    if any(cell.p is not None for cell in cells):
        notes.append(
            f"{MARK} worse than the best of the column: p < {comparison.alpha:g} in a paired sign-flip test over "
            "items, Holm-corrected within the column."
        )
    wide = [path for path in comparison.columns if _is_wide(comparison, path)]
    if any(row.cells[path].interval for row in comparison.rows for path in wide):
        notes.append("In brackets: 95 % intervals, bootstrapped over items.")
    return [*notes, *comparison.notes]


def metric_name(path: str) -> str:
    above, _, name = path.rpartition(".")
    if above == "micro_f1":
        return name
    match = re.fullmatch(r"(r|recall|ndcg|precision)(\d+)", name)
    return METRICS.get(name) or (f"{_AT[match[1]]}@{match[2]}" if match else name)


def _short(path: str) -> str:
    above = path.rpartition(".")[0]
    return "micro-F1" if above == "micro_f1" else above.upper().replace("2", "→")


def _direction(path: str) -> str:
    way = path.rpartition(".")[0]
    return "micro-F1" if way == "micro_f1" else WAYS.get(way, way)


def _is_wide(comparison: Comparison, path: str) -> bool:
    """Whether the interval is shown: of RSUM, as papers have room for no more, or of all where there is no RSUM."""
    return path == "rsum" or "rsum" not in comparison.columns


def _cell(comparison: Comparison, cell: ComparisonCell, path: str, mark: Callable[[str, int | None], str]) -> str:
    if cell.value is None:
        return EMPTY
    return mark(f"{cell.value:.{DIGITS}f}", cell.place) + _suffix(comparison, cell, path)


def _suffix(comparison: Comparison, cell: ComparisonCell, path: str) -> str:
    worse = MARK if cell.is_worse else ""
    if cell.interval is None or not _is_wide(comparison, path):
        return worse
    low, high = cell.interval
    return f"{worse} [{low:.{DIGITS}f}, {high:.{DIGITS}f}]"


def _rich_cell(comparison: Comparison, cell: ComparisonCell, path: str, styled: bool) -> Text:
    if not styled or cell.value is None:
        return Text(_cell(comparison, cell, path, _markdown_mark))
    style = {1: "bold", 2: "underline"}.get(cell.place or 0, "")
    behind = _suffix(comparison, cell, path).replace(" [", "\n[")  # narrow enough for a terminal
    return Text.assemble((f"{cell.value:.{DIGITS}f}", style), behind)


def _markdown_mark(text: str, place: int | None) -> str:
    return {1: f"**{text}**", 2: f"*{text}*"}.get(place or 0, text)


def _latex_mark(text: str, place: int | None) -> str:
    return {1: rf"\textbf{{{text}}}", 2: rf"\underline{{{text}}}"}.get(place or 0, text)


def _markdown_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _latex_row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\|*_`<>\[\]#])", r"\\\1", " ".join(text.split()))


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))
