"""From finished runs to benchmarks/results/results.json, from which the pages are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import results_differences as differences
from results_claims import CLAIMS, DEFECTS, judge, verdict
from results_rows import ENSEMBLES, TABLES, Ensemble, Row
from results_run import FIGURES, Bench, Cell, measured, ranks

Runs = dict[int, tuple[Cell, Path]]
"""By seed: what was found, and the file of its ranks."""


class Summary:
    """Everything that is there so far. Differences are remembered: most rows stay as they were from job to job."""

    def __init__(self, bench: Bench, seeds: int) -> None:
        self.bench, self.seeds = bench, seeds
        self._differences: dict[Any, differences.Difference] = {}
        self.runs: dict[str, Runs] = {}

    def entry(self) -> dict[str, Any]:
        """JSON-able."""
        self.runs = {name: found for name, row in self.bench.plan.rows.items() if (found := self._finished(row))}
        for ensemble in ENSEMBLES:
            if found := self._joined(ensemble):
                self.runs[ensemble.name] = found
        rows = {name: self._row(name, runs) for name, runs in self.runs.items()}
        data = self.bench.data
        return {
            "data": {"name": data.name, "splits": data.splits},
            "protocol": next(
                (cell["protocol"] for runs in self.runs.values() for cell, _ in runs.values() if "protocol" in cell), ""
            ),
            "common": list(self.bench.plan.common),
            "epochs": self.bench.plan.epochs,
            "seeds": self.seeds,
            "planned": [row.name for row in self.bench.plan.rows.values() if self.bench.can_run(row)],
            "rows": rows,
            "claims": judge(CLAIMS, self.compare),
            "defects": self._defects(),
            "flattery": self._flattery(),
        }

    def _finished(self, row: Row) -> Runs:
        found: Runs = {}
        if not self.bench.can_run(row):
            return found
        for seed in range(self.seeds):
            if cell := self.bench.cell(row, seed):
                found[seed] = cell, self.bench.place(row, seed).with_suffix(".npz")
        return found

    def _joined(self, ensemble: Ensemble) -> Runs:
        """The mean of two models' scores, where both are there."""
        found: Runs = {}
        rows = [self.bench.plan.rows.get(name) for name in ensemble.members]
        if not all(rows) or (ensemble.shift and self.seeds < 2):
            return found
        # Of two seeds there is one pair.
        for seed in range(1 if ensemble.shift and self.seeds == 2 else self.seeds):
            whose = zip(rows, (seed, (seed + ensemble.shift) % self.seeds), strict=True)
            files = [
                self.bench.place(row, of).with_suffix(".npy") for row, of in whose if row and self.bench.can_run(row)
            ]
            if len(files) < 2 or not all(file.exists() for file in files):
                continue
            kept = self.bench.out / f"{'+'.join(file.stem for file in files)}.npz"
            if not kept.exists():
                ranks(measured(files, self.bench.data), kept)
            found[seed] = {"figures": _from_ranks(kept), "seed": seed}, kept
        return found

    def _row(self, name: str, runs: Runs) -> dict[str, Any]:
        row = self.bench.plan.rows.get(name)
        joined = next((each for each in ENSEMBLES if each.name == name), None)
        label, groups = (joined.label, [joined.group]) if joined else (row.label, list(row.groups)) if row else ("", [])
        cells = [cell for cell, _ in runs.values()]
        sound = [cell for cell in cells if "stopped" not in cell]
        found: dict[str, Any] = {"label": label, "groups": groups, "seeds": sorted(runs), "ensemble": row is None}
        found["stopped"] = [cell["stopped"] for cell in cells if "stopped" in cell]
        found["mean"] = {
            metric: differences.spread([cell["figures"][metric] for cell in sound]) for metric in FIGURES if sound
        }
        spreads = [each for cell in sound if (each := differences.value(cell, "log_variance")) is not None]
        if spreads:
            found["log_variance"] = differences.spread(spreads)
        for group in groups:
            reference = TABLES[group].reference if group in TABLES else None
            if reference and reference != name and (apart := self.compare(name, reference, "rsum")):
                found.setdefault("against", {})[reference] = apart
        if row:
            found |= {"base": row.base, "settings": list(row.settings), "longer": row.longer, "runs": cells}
        return found

    def compare(self, a: str, b: str | None, metric: str) -> differences.Difference | None:
        """a minus b, of the seeds that both have; without b, a itself. None if there is none."""
        if a not in self.runs or (b is not None and b not in self.runs):
            return None
        one, other = self.runs[a], self.runs[b] if b is not None else None
        values = {seed: differences.value(cell, metric) for seed, (cell, _) in one.items()}
        theirs = {seed: differences.value(cell, metric) if other else 0.0 for seed, (cell, _) in (other or one).items()}
        seeds = [seed for seed in values if values[seed] is not None and theirs.get(seed) is not None]
        if not seeds:
            return None
        key = (a, b, metric, *seeds)
        if key not in self._differences:
            if metric == "rsum" and other is not None:
                files = [[runs[seed][1] for seed in seeds] for runs in (one, other)]
                self._differences[key] = differences.by_queries(*files)
            else:
                self._differences[key] = differences.by_seeds([values[seed] - theirs[seed] for seed in seeds])
        return self._differences[key]

    def _defects(self) -> list[dict[str, Any]]:
        """What correcting each is worth: right minus wrong."""
        found = []
        for defect in DEFECTS:
            worth = self.compare(defect.right, defect.wrong, "rsum")
            if worth is None:
                continue
            read = [
                cell["read_as"]["rsum"] - cell["figures"]["rsum"]
                for cell, _ in self.runs[defect.wrong].values()
                if "read_as" in cell
            ]
            found.append(
                {
                    **vars(defect),
                    "worth": worth,
                    "verdict": verdict(worth["interval"], worth["seeds"]),
                    "at_test_alone": differences.spread(read) if read else None,
                }
            )
        return found

    def _flattery(self) -> dict[str, Any] | None:
        """By how much the best validation of a run is above its last: what picking on val would have added."""
        gains = [
            max(each["rsum"] for each in cell["validations"]) - cell["validations"][-1]["rsum"]
            for runs in self.runs.values()
            for cell, _ in runs.values()
            if len(cell.get("validations", ())) > 1 and "stopped" not in cell
        ]
        return {"mean": sum(gains) / len(gains), "most": max(gains), "runs": len(gains)} if gains else None


def figures_beside(other: dict[str, Any] | None) -> dict[str, Any] | None:
    """What a page tells of another run: the rate of learning, and each row's RSUM with its seeds."""
    if other is None:
        return None
    rows = {
        name: {"seeds": row["seeds"], "rsum": row["mean"]["rsum"][0]}
        for name, row in other["rows"].items()
        if row["mean"] and not row["ensemble"]
    }
    return {"common": other["common"], "epochs": other["epochs"], "rows": rows}


def _from_ranks(file: Path) -> dict[str, float]:
    with np.load(file) as held:
        found = {
            f"{way}.r{cut}": float(100 * (held[way] < cut).mean())
            for way in differences.WAYS
            for cut in differences.CUTS
        }
    return {"rsum": sum(found.values()), **found}
