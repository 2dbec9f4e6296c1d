"""Comparison tables for terminals, in Markdown, LaTeX and JSON, each with its protocol stamp."""

from __future__ import annotations

import io
import re
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from polysem.evaluation.reports.compare import DIGITS, Comparison, ComparisonRow

WAYS = {"i2t": "image → text", "t2i": "text → image", "i2i": "image → image", "t2t": "text → text"}
WAYS |= {"nouns": "nouns", "rare_nouns": "rare nouns", "phrases": "phrases", "rare_phrases": "rare phrases"}
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
_MARKDOWN_MARKS = ("{}", "**{}**", "*{}*")
"""Of any figure, the best and the second."""
_LATEX_MARKS = ("{}", r"\textbf{{{}}}", r"\underline{{{}}}")
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
    """styled: mark by bold and underlined; else, where the output is not a terminal, as Markdown does."""
    marks = ("Bold", "underlined") if styled else ("**", "*")
    table = Table("Model", "Embedding", title=Text(str(comparison.stamp)), title_justify="left")
    table.caption, table.caption_justify = Text("\n".join(legend(comparison, *marks))), "left"
    for path in comparison.columns:
        table.add_column(f"{_short(path)}\n{metric_name(path)}", justify="right")
    for row in comparison.rows:
        cells = [Text(cell) for cell in _cells(comparison, row, _MARKDOWN_MARKS)]
        for column, path in enumerate(comparison.columns if styled else ()):
            value, behind = _figure(comparison, row, path)
            style = ("", "bold", "underline")[row.cells[path].place or 0]
            cells[column] = Text.assemble((value, style), behind.replace(" [", "\n["))  # narrow enough for a terminal
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
    rows = [["Model", "Embedding", *headings], [":--", ":--", *("--:" for _ in comparison.columns)]]
    for row in comparison.rows:
        rows.append([_escape_markdown(row.model), row.embedding, *_cells(comparison, row, _MARKDOWN_MARKS)])
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    notes = [f"{_escape_markdown(note)}  " for note in legend(comparison, "Bold", "italic")]
    return "\n".join([f"{_escape_markdown(str(comparison.stamp))}\n", *lines, "", *notes]).rstrip() + "\n"


def as_latex(comparison: Comparison) -> str:
    """For booktabs."""
    above, rules, column = ["", ""], [], 3
    for name, paths in groupby(comparison.columns, lambda path: _direction(path, WAYS.get(path.rpartition(".")[0]))):
        width = len(list(paths))
        above.append(rf"\multicolumn{{{width}}}{{c}}{{{_escape_latex(name)}}}")
        if name:
            rules.append(rf"\cmidrule(lr){{{column}-{column + width - 1}}}")
        column += width
    headings = ["Model", "Embedding", *(_escape_latex(metric_name(path)) for path in comparison.columns)]
    rows = []
    for row in comparison.rows:
        cells = _cells(comparison, row, _LATEX_MARKS)
        latex = [cell.replace(MARK, _LATEX[MARK]).replace(EMPTY, _LATEX[EMPTY]) for cell in cells]
        rows.append([_escape_latex(row.model), _escape_latex(row.embedding), *latex])
    notes = (_escape_latex(note) for note in legend(comparison, "Bold", "underlined"))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escape_latex(str(comparison.stamp))}.}}",
        rf"\begin{{tabular}}{{ll{'r' * len(comparison.columns)}}}",
        r"\toprule",
        " & ".join(above) + r" \\",
        " ".join(rules),
        " & ".join(headings) + r" \\",
        r"\midrule",
        *(" & ".join(cells) + r" \\" for cells in rows),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\smallskip{{\footnotesize {note}}}" for note in notes),
        r"\end{table}",
    ]
    return "".join(f"{line}\n" for line in lines if line)


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """JSON-able."""
    content = {name: value for name, value in asdict(comparison).items() if name != "stamp"}
    return {"protocol": comparison.stamp.as_dict(), **content}


def legend(comparison: Comparison, best: str, second: str) -> list[str]:
    """What the marks mean, for those that occur. best, second: how those figures are marked."""
    cells = [cell for row in comparison.rows for cell in row.cells.values()]
    notes = []
    if any(cell.place for cell in cells):
        notes.append(f"{best}: best of the column; {second}: second.")
    if any(cell.p is not None for cell in cells):
        notes.append(
            f"{MARK} worse than the best of the column: p < {comparison.alpha:g} in a paired sign-flip test over "
            f"{comparison.stamp.resampled}, Holm-corrected within the column."
        )
    if any("[" in _figure(comparison, row, path)[1] for row in comparison.rows for path in comparison.columns):
        notes.append(f"In brackets: 95 % intervals, bootstrapped over {comparison.stamp.resampled}.")
    return [*notes, *comparison.notes]


def metric_name(path: str) -> str:
    above, _, name = path.rpartition(".")
    if above == "micro_f1":
        return name
    match = re.fullmatch(r"(r|recall|ndcg|precision)(\d+)", name)
    return METRICS.get(name) or (f"{_AT[match[1]]}@{match[2]}" if match else name)


def _direction(path: str, name: str | None) -> str:
    """name: What to call the direction; None: as the path does."""
    way = path.rpartition(".")[0]
    return "micro-F1" if way == "micro_f1" else name or way


def _short(path: str) -> str:
    way = path.rpartition(".")[0]
    return _direction(path, way.upper().replace("2", "→") if "2" in way else WAYS.get(way))


def _figure(comparison: Comparison, row: ComparisonRow, path: str) -> tuple[str, str]:
    """The value, and the mark and interval behind it: of RSUM alone, where there is one, as papers lack room."""
    cell = row.cells[path]
    if cell.value is None:
        return EMPTY, ""
    behind = MARK if cell.is_worse else ""
    if cell.interval is not None and (path == "rsum" or "rsum" not in comparison.columns):
        behind += f" [{cell.interval[0]:.{DIGITS}f}, {cell.interval[1]:.{DIGITS}f}]"
    return f"{cell.value:.{DIGITS}f}", behind


def _cells(comparison: Comparison, row: ComparisonRow, marks: tuple[str, str, str]) -> list[str]:
    figures = {path: _figure(comparison, row, path) for path in comparison.columns}
    return [marks[row.cells[path].place or 0].format(value) + behind for path, (value, behind) in figures.items()]


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\|*_`<>\[\]#])", r"\\\1", " ".join(text.split()))


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))
