"""The synthetic experiment on one page that needs nothing but itself: the table, and learned against true weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from polysem.reproduction.gpo_experiment import GPOExperiment
from polysem.reproduction.gpo_synthetic import DESIGNS, SHOWN, SIZES, GPORun, coefficients
from polysem.training import charts


def render_experiment(experiment: GPOExperiment) -> str:
    """The whole page as HTML."""
    runs = experiment.runs
    designs = list(dict.fromkeys(run.design for run in runs))
    patterns = list(dict.fromkeys(run.pattern for run in runs))
    cells = {(cell.design, cell.pattern, cell.sizes): cell for cell in experiment.cells}
    rows = [
        (pattern, f"{sizes}, {span[0]}–{span[-1]}", [cells[design, pattern, sizes] for design in designs])
        for pattern in patterns
        for sizes, span in SIZES.items()
    ]
    return charts.render_page(
        "polysem.reproduction",
        "gpo_synthetic.html",
        title="GPO on synthetic patterns",
        experiment=experiment,
        designs=[DESIGNS[design] for design in designs],
        rows=rows,
        sections=[(pattern, list(_panels(pattern, runs, designs))) for pattern in patterns],
    )


def _panels(pattern: str, runs: Sequence[GPORun], designs: Sequence[str]) -> Iterator[Markup]:
    """The learned and the true coefficients, by size and design."""
    of_pattern = [run for run in runs if run.pattern == pattern]
    for size in SHOWN:
        true = coefficients(pattern, [size], size)[0].tolist()
        # One scale for a row of panels, so that designs can be compared.
        top = max(max(true), *(max(run.learned[size]) for run in of_pattern))
        for design in designs:
            title = f"n = {size}" + ("" if size in SIZES["seen"] else ", not seen in training")
            label = "position k, largest value first"
            chart = charts.Chart(title, label, "", (1, size), (0, top), whole_x=True, width=300, height=160)
            marks = charts.line(chart, list(enumerate(true, 1)), "true", dots=False)
            for run in of_pattern:
                if run.design == design:
                    marks += charts.line(chart, list(enumerate(run.learned[size], 1)), "c1", dots=False)
            yield charts.figure(chart, marks, f"Coefficients of {DESIGNS[design]} for a set of {size}.")
