"""What methods cost: parameters, training, memory and search, each beside VSE∞."""

from __future__ import annotations

from statistics import median
from typing import Any

from results_rows import COSTED
from results_run import Bench

from polysem.evaluation.cost import build_untrained, cost

GALLERY = (200, 5000)
ROUNDS = 3


def costs(bench: Bench) -> dict[str, Any]:
    """Search and memory of untrained models, which cost the same."""
    rows = [bench.plan.rows[name] for name in COSTED if name in bench.plan.rows]
    if not rows:
        return {"gallery": GALLERY, "rounds": ROUNDS, "rows": {}}
    found = cost({row.name: build_untrained(bench.recipe(row)) for row in rows}, GALLERY, ROUNDS)
    table = {}
    for each in found:
        row = bench.plan.rows.get(each.name)
        if row is None:  # a bare single vector, where no row has one
            continue
        table[each.name] = {
            "label": row.label,
            "vectors": each.set_sizes[0],
            "dim": each.dim,
            "trained_parameters": each.parameters.trainable if each.parameters else None,
            "bytes": each.image_bytes.float16,
            "flops": each.flops,
            "ms_per_query": 1000 * each.text_to_image.cpu / GALLERY[0],
            "items_per_second": each.items_per_second,
        }
    return {"gallery": GALLERY, "rounds": ROUNDS, "rows": table}


def with_training(bench: Bench, found: dict[str, Any] | None, seeds: int) -> dict[str, Any] | None:
    """The same table with what training cost, as far as runs noted it by now."""
    if found is None:
        return None
    rows = {name: {**row, "train_seconds": _training(bench, name, seeds)} for name, row in found["rows"].items()}
    return {**found, "rows": rows}


def _training(bench: Bench, name: str, seeds: int) -> float | None:
    """Seconds of processor time for a thousand pairs, validations included: the median of the runs done in one go."""
    row, train = bench.plan.rows[name], bench.data.split("train")
    pairs = len(train.captions) * row.longer * bench.plan.epochs
    cells = [cell for seed in range(seeds) if (cell := bench.cell(row, seed)) and cell.get("whole")]
    return median(1000 * cell["train_seconds"] / pairs for cell in cells) if cells else None
