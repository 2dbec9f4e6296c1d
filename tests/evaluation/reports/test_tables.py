"""The same comparison four times: every drawing has the figures, the marks and the stamp."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from evaluation.sample_evaluations import stamp
from polysem.evaluation.reports.compare import Comparison, ComparisonCell, ComparisonRow
from polysem.evaluation.reports.tables import as_dict, as_latex, as_markdown, as_plain, as_rich, metric_name

COLUMNS = ("i2t.r1", "i2t.r5", "t2i.r1", "rsum")


def row(name: str, embedding: str, cells: tuple[ComparisonCell, ...]) -> ComparisonRow:
    return ComparisonRow(name, embedding, dict(zip(COLUMNS, cells, strict=True)))


FIRST = (
    ComparisonCell(52.31, (50.0, 54.0), 1),
    ComparisonCell(80, place=1),
    ComparisonCell(40, place=1),
    ComparisonCell(400.06, (390.0, 410.5), 1),
)
SECOND = (
    ComparisonCell(47.1, None, 2, 0.2),
    ComparisonCell(70, None, 2, 0.01, True),
    ComparisonCell(None),
    ComparisonCell(300, (290.0, 310.0), 2, 0.0001, True),
)
THIRD = (ComparisonCell(1.0), ComparisonCell(2.0), ComparisonCell(3.0), ComparisonCell(4.0))
TABLE = Comparison(
    stamp(10, 50, {"dataset": "toy_set"}),
    COLUMNS,
    (row("di_ve|x*", "set 4", FIRST), row(r"50% & [a]\b", "single", SECOND), row("third", "", THIRD)),
    notes=("third: selection unknown.",),
)


def test_markdown_marks_best_second_and_worse() -> None:
    lines = as_markdown(TABLE).splitlines()
    assert lines[0] == "toy\\_set test, 10×50, hit rate, inductive, selection unknown"
    assert lines[2] == "| Model | Embedding | I→T R@1 | I→T R@5 | T→I R@1 | RSUM |"
    assert lines[3] == "| :-- | :-- | --: | --: | --: | --: |"
    assert lines[4] == r"| di\_ve\|x\* | set 4 | **52.3** | **80.0** | **40.0** | **400.1** [390.0, 410.5] |"
    assert lines[5] == r"| 50% & \[a\]\\b | single | *47.1* | *70.0*† | – | *300.0*† [290.0, 310.0] |"
    assert lines[6] == "| third |  | 1.0 | 2.0 | 3.0 | 4.0 |"
    legend = "\n".join(lines[8:])
    for told in ("Bold: best", "italic: second", "† worse", "p \\< 0.05", "Holm", "95 % intervals", "third: selection"):
        assert told in legend


def test_latex_marks_with_booktabs_and_escapes_what_latex_would_read() -> None:
    text = as_latex(TABLE)
    assert r"\caption{toy\_set test, 10$\times$50, hit rate, inductive, selection unknown.}" in text
    assert (
        r" &  & \multicolumn{2}{c}{image $\to$ text} & \multicolumn{1}{c}{text $\to$ image} & \multicolumn{1}{c}{} \\"
        in text
    )
    assert r"\cmidrule(lr){3-4} \cmidrule(lr){5-5}" in text
    assert (
        r"di\_ve|x* & set 4 & \textbf{52.3} & \textbf{80.0} & \textbf{40.0} & \textbf{400.1} [390.0, 410.5] \\" in text
    )
    assert (
        r"50\% \& {[}a{]}\textbackslash{}b & single & \underline{47.1} & \underline{70.0}$^{\dagger}$ & -- & "
        r"\underline{300.0}$^{\dagger}$ [290.0, 310.0] \\"
    ) in text
    assert text.count(r"\begin{") == text.count(r"\end{") == 2
    for rule in ("toprule", "midrule", "bottomrule"):
        assert text.count(f"\\{rule}\n") == 1
    assert not re.search(r"(?<!\\)[%#]", text)
    assert "†" not in text


def test_every_row_of_the_latex_has_as_many_cells() -> None:
    rows = [line for line in as_latex(TABLE).splitlines() if line.endswith(r"\\")]
    spans = [sum(int(n) - 1 for n in re.findall(r"multicolumn\{(\d)\}", line)) for line in rows]
    assert [len(re.split(r"(?<!\\)&", line)) + more for line, more in zip(rows, spans, strict=True)] == [6] * 5


def test_the_terminal_shows_bold_and_underlined() -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="standard", highlight=False)
    with console.capture() as captured:
        console.print(as_rich(TABLE))
    text = captured.get()
    assert "\x1b[1m52.3\x1b[0m" in text
    assert "\x1b[4m70.0\x1b[0m†" in text
    assert "di_ve|x*" in text
    assert "[a]" in text
    assert str(TABLE.stamp) in text
    assert "Bold: best" in text


def test_what_is_no_terminal_gets_marks_that_it_can_hold() -> None:
    text = as_plain(TABLE)
    assert "\x1b" not in text
    assert "**52.3**" in text
    assert "*70.0*†" in text
    assert "**400.1** [390.0, 410.5]" in text


def test_without_rsum_every_column_shows_its_interval() -> None:
    narrow = Comparison(TABLE.stamp, ("i2t.r1",), TABLE.rows[:1])
    assert "**52.3** [50.0, 54.0]" in as_markdown(narrow)
    assert "52.3** [" not in as_markdown(TABLE)


def test_the_json_is_all_there_is_to_know() -> None:
    found = json.loads(json.dumps(as_dict(TABLE)))
    assert found["protocol"]["stamp"] == str(TABLE.stamp)
    assert found["columns"] == list(COLUMNS)
    assert found["rows"][1]["cells"]["rsum"] == {
        "value": 300, "interval": [290.0, 310.0], "place": 2, "p": 0.0001, "is_worse": True, "difference": None,
    }  # fmt: skip
    assert (found["alpha"], found["notes"]) == (0.05, ["third: selection unknown."])


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("i2t.r10", "R@10"),
        ("rsum", "RSUM"),
        ("t2i.recall5", "Recall@5"),
        ("i2t.map_at_r", "mAP@R"),
        ("x.other", "other"),
    ],
)
def test_metrics_are_called_what_papers_call_them(path: str, name: str) -> None:
    assert metric_name(path) == name
