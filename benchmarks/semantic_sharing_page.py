"""The tables of docs/benchmarks/label-wise.md, written from the results between `<!-- NAME -->` marks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from polysem.inspection.diagnose.error_analysis import KINDS


def fill(page: Path, name: str, entry: Mapping[str, Any], columns: Mapping[str, str]) -> bool:
    """Put the tables of a collection into the page. False if the page has no place for it."""
    text = page.read_text(encoding="utf-8")
    place = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    if not place.search(text):
        return False
    tables = "\n".join(_lines(name, entry, columns))
    page.write_text(place.sub(lambda found: f"{found[1]}{tables}\n{found[2]}", text), encoding="utf-8")
    return True


def _lines(name: str, entry: Mapping[str, Any], columns: Mapping[str, str]) -> Iterator[str]:
    items, seeds = entry["items"], len(entry["seeds"])
    sizes = ", ".join(f"{count:,} {split}" for split, count in items.items())
    yield f"{name}: {sizes} items, {entry['labels']} labels, {entry['labels_per_item']:.1f} of them an item; "
    yield f"{entry['epochs']} epochs, {seeds} seeds, mean ± standard deviation. `{entry['protocol']}`"
    yield ""
    yield f"| test | {' | '.join(columns.values())} |"
    yield f"|---|{'---:|' * len(columns)}"
    best = {column: max(row[column][0] for row in entry["table"].values()) for column in columns}
    for recipe, row in entry["table"].items():
        cells = []
        for column in columns:
            mean, spread = row[column]
            cell = f"{mean:.1f} ± {spread:.1f}"
            cells.append(f"**{cell}**" if mean == best[column] else cell)
        yield f"| {recipe} | {' | '.join(cells)} |"
    apart = entry["consistency_minus_without"]
    cells = [
        f"{apart[each]['mean']:+.1f} ({', '.join(f'{d:+.1f}' for d in apart[each]['differences'])})" for each in columns
    ]
    yield f"| *consistency minus without (each seed)* | {' | '.join(cells)} |"
    yield ""
    yield f"| wrong first answers, seed {entry['seeds'][0]} | queries | wrong | {' | '.join(KINDS)} |"
    yield f"|---|---:|---:|{'---:|' * len(KINDS)}"
    for row, found in entry["failures"].items():
        shares = [f"{found[kind]} ({100 * found[kind] / max(1, found['wrong']):.0f} %)" for kind in KINDS]
        yield f"| {row} | {found['queries']} | {found['wrong']} | {' | '.join(shares)} |"
    yield ""
    runs = seeds * len(entry["table"])
    yield f"{entry['processor_seconds'] / 60:.0f} minutes of processor time for the {runs} runs and their evaluation,"
    yield f"{entry['workers']} at a time on {entry['machine']['cores']} cores."
