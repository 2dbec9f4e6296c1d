"""From finished runs over DINOv2 tokens to benchmarks/results/results-dinov2.json, from which the page is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import results_differences as differences
from results_dinov2_claims import CLAIMS, judge
from results_dinov2_rows import Row
from results_dinov2_run import PAIRS, PARTS, Bench, Cell
from results_dinov2_search import choose, summarise

Runs = dict[int, tuple[Cell, Path]]
"""By seed: what was found, and the file of its queries."""

COMPARED = ("rsum", "i2t.map_at_r", "i2t.r_precision", *PARTS)
"""Figures by which a set is compared with its single vectors."""


class Summary:
    """Everything that is there so far. Differences are remembered: most rows stay as they were from run to run."""

    def __init__(self, bench: Bench, seeds: int) -> None:
        self.bench, self.seeds = bench, seeds
        self.runs: dict[str, Runs] = {}
        self._differences: dict[Any, differences.Difference] = {}

    def entry(self) -> dict[str, Any]:
        """JSON-able."""
        plan = self.bench.plan
        self.runs = {name: found for name, row in plan.rows.items() if (found := self._finished(row))}
        held = self.bench.search_data
        protocols = next(
            (cell["protocols"] for runs in self.runs.values() for cell, _ in runs.values() if "protocols" in cell), {}
        )
        return {
            "data": {"name": self.bench.data.name, "splits": self.bench.data.splits},
            "held_out": {"train": held.splits["train"], "held": held.splits["val"]},
            "protocols": protocols,
            "common": list(plan.common),
            "grid": vars(plan.grid),
            "seeds": self.seeds,
            "planned": list(plan.rows),
            "search": summarise(self.bench),
            "rows": {name: self._row(plan.rows[name], runs) for name, runs in self.runs.items()},
            "claims": judge(CLAIMS, self.compare),
        }

    def _finished(self, row: Row) -> Runs:
        trial = choose(self.bench, row)
        if trial is None:
            return {}
        cells = {seed: self.bench.cell(row, trial, seed) for seed in range(self.seeds)}
        return {
            seed: (cell, self.bench.place(row, trial, seed, searching=False).with_suffix(".npz"))
            for seed, cell in cells.items()
            if cell is not None
        }

    def _row(self, row: Row, runs: Runs) -> dict[str, Any]:
        cells = [cell for cell, _ in runs.values()]
        sound = [cell for cell in cells if "stopped" not in cell]
        names = [name for name in (*PAIRS, *PARTS) if sound and all(name in cell["figures"] for cell in sound)]
        found: dict[str, Any] = {
            "label": row.label,
            "kind": row.kind,
            "base": row.base,
            "settings": list(row.settings),
            "searched_as": row.search,
            "seeds": sorted(runs),
            "stopped": [cell["stopped"] for cell in cells if "stopped" in cell],
            "mean": {name: differences.spread([cell["figures"][name] for cell in sound]) for name in names},
            "runs": cells,
        }
        spreads = [value for cell in sound if (value := differences.value(cell, "log_variance")) is not None]
        if spreads:
            found["log_variance"] = differences.spread(spreads)
        for role, other in (("twin", row.twin), ("equal_bytes", row.equal_bytes)):
            against = {
                metric: apart for metric in COMPARED if other and (apart := self.compare(row.name, other, metric))
            }
            if against:
                found[role] = {"row": other, "against": against}
        return found

    def compare(self, a: str, b: str, metric: str) -> differences.Difference | None:
        """a minus b, of the seeds that both have. None if there is none, or no such figure."""
        if a not in self.runs or b not in self.runs:
            return None
        one, other = self.runs[a], self.runs[b]
        seeds = [
            seed
            for seed in one
            if seed in other and all(_value(runs[seed][0], metric) is not None for runs in (one, other))
        ]
        if not seeds:
            return None
        key = (a, b, metric, *seeds, *(str(runs[seed][1]) for runs in (one, other) for seed in seeds))
        if key not in self._differences:
            files = [[runs[seed][1] for seed in seeds] for runs in (one, other)]
            if metric == "rsum":
                self._differences[key] = differences.by_queries(*files)
            elif metric == "log_variance":
                values = [[_value(runs[seed][0], metric) or 0.0 for seed in seeds] for runs in (one, other)]
                self._differences[key] = differences.by_seeds([x - y for x, y in zip(*values, strict=True)])
            else:
                self._differences[key] = differences.by_values(*files, metric)
        return self._differences[key]


def _value(cell: Cell, metric: str) -> float | None:
    if "stopped" in cell or metric == "log_variance":
        return differences.value(cell, metric)
    return cell["figures"].get(metric)
