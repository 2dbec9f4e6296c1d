"""The tables of emoji scenes in docs/methods/sets.md, written from the results between `<!-- emoji-sets -->` marks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

PLACE = re.compile(r"(<!-- emoji-sets -->\n).*?(<!-- /emoji-sets -->)", re.DOTALL)
COLUMNS = {
    "rsum": "RSUM",
    "i2t.map_at_r": "mAP@R",
    "i2t.r_precision": "R-precision",
    "nouns.map": "nouns mAP",
    "nouns.precision10": "nouns P@10",
    "phrases.map": "phrases mAP",
    "phrases.precision10": "phrases P@10",
}


def fill(page: Path, entry: Mapping[str, Any]) -> None:
    """Put the tables into the page."""
    text = page.read_text(encoding="utf-8")
    tables = "\n".join(list_tables(entry))
    page.write_text(PLACE.sub(lambda found: f"{found[1]}{tables}\n{found[2]}", text), encoding="utf-8")


def list_tables(entry: Mapping[str, Any]) -> Iterator[str]:
    """What was measured, how far the set is ahead, and the search."""
    items, protocols = entry["items"], entry["protocols"]
    sizes = ", ".join(f"{count:,} {split}" for split, count in items.items())
    yield f"{sizes} scenes; {len(entry['seeds'])} seeds, mean ± standard deviation."
    yield f"`{protocols['pairs']}`; part queries: `{protocols['parts']}`."
    yield ""
    yield f"| test | vectors | parameters | {' | '.join(COLUMNS.values())} | RSUM of val, which chose |"
    yield f"|---|---|--:|{'--:|' * (len(COLUMNS) + 1)}"
    for row, figures in entry["table"].items():
        facts = entry["rows"][row]
        vectors = f"{facts['set_sizes'][0]} × {facts['dim']:,}"
        cells = [*(_show_figure(figures[metric]) for metric in COLUMNS), f"{fmean(facts['val_rsum']):.1f}"]
        yield f"| {row} | {vectors} | {facts['parameters'] / 1e6:.2f} M | {' | '.join(cells)} |"
    yield ""
    yield "The set minus the others, with the 95 % interval of other images (for part queries: nouns) and other seeds;"
    yield "bold where it is clear of zero:"
    yield ""
    yield f"| | {' | '.join(COLUMNS.values())} |"
    yield f"|---|{'--:|' * len(COLUMNS)}"
    for row, apart in entry["set_minus"].items():
        yield f"| {row} | {' | '.join(_show_difference(apart[metric]) for metric in COLUMNS)} |"
    yield ""
    yield describe(entry)
    yield ""
    yield from _list_trials(entry["trials"])


def describe(entry: Mapping[str, Any]) -> str:
    """What the differences in RSUM say, whoever is ahead."""
    parts = []
    for row, apart in entry["set_minus"].items():
        found = apart["rsum"]
        low, high = found["interval"]
        side = "ahead of" if found["mean"] >= 0 else "behind"
        clear = "clear of zero" if low > 0 or high < 0 else "which holds zero"
        parts.append(f"{side} the row *{row}* by {abs(found['mean']):.1f} RSUM ({low:+.1f} to {high:+.1f}, {clear})")
    return f"The set is {' and '.join(parts)}."


def _show_figure(figure: Mapping[str, Any]) -> str:
    spread = "" if figure["sd"] is None else f" ± {figure['sd']:.1f}"
    return f"{figure['mean']:.1f}{spread}"


def _show_difference(found: Mapping[str, Any]) -> str:
    low, high = found["interval"]
    shown = f"{found['mean']:+.1f} ({low:+.1f} to {high:+.1f})"
    return f"**{shown}**" if low > 0 or high < 0 else shown


def _list_trials(trials: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """The search: a row for each combination of values, RSUM on val of each model."""
    names = list(trials)
    keys = list(trials[names[0]][0]["values"])
    found = {row: {_key(trial): trial["val_rsum"] for trial in each} for row, each in trials.items()}
    yield "The search, first seed, RSUM on val; chosen in bold:"
    yield ""
    yield f"| {' | '.join(f'`{key}`' for key in keys)} | {' | '.join(names)} |"
    yield f"|{'--:|' * (len(keys) + len(names))}"
    best = {row: max(each.values()) for row, each in found.items()}
    for values in sorted({values for each in found.values() for values in each}):
        cells = [found[row].get(values) for row in names]
        shown = [
            "" if cell is None else f"**{cell:.1f}**" if cell == best[row] else f"{cell:.1f}"
            for row, cell in zip(names, cells, strict=True)
        ]
        yield f"| {' | '.join(f'{value:g}' for value in values)} | {' | '.join(shown)} |"


def _key(trial: Mapping[str, Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in trial["values"].values())
