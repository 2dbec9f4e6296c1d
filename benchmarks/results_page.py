"""The tables of docs/benchmarks/results.md, written from results.json between `<!-- NAME -->` and
`<!-- /NAME -->`. What stands outside the marks was written by hand and stays."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from results_claims import FAILED, HELD, NOISE, OPEN
from results_rows import TABLES

Entry = Mapping[str, Any]
PAGE = Path("benchmarks", "results.md")
BOLD = {HELD: f"**{HELD}**", FAILED: f"**{FAILED}**"}
WORTH = {HELD: "**worth it**", FAILED: "**the defect helps**", NOISE: NOISE, OPEN: OPEN}
ALT = {
    "differences": "RSUM of every method minus that of VSE∞, with intervals",
    "convergence": "RSUM by step under AdOpt and under triplets; negatives that AdOpt keeps",
    "sets": "RSUM against the log circular variance of the sets",
}
METRICS = {"area": "mean RSUM", "log_variance": "log variance", "negatives": "negatives"}


def write(entry: Entry, docs: Path, drawn: Mapping[str, str]) -> None:
    """Fill the page, where it is there. drawn: files of figures by name."""
    parts: dict[str, Callable[[], Iterator[str]]] = {
        "state": lambda: state(entry),
        "claims": lambda: claims(entry),
        "convergence-negatives": lambda: negatives(entry),
        "cost": lambda: cost(entry),
        "flattery": lambda: flattery(entry),
        "defects": lambda: defects(entry),
        "rates": lambda: rates(entry),
        **{name: (lambda name=name: table(entry, name)) for name in TABLES},
        **{f"figure-{name}": (lambda name=name: picture(name, drawn)) for name in ALT},
    }
    fill_page(docs, parts)


def fill_page(docs: Path, parts: Mapping[str, Callable[[], Iterator[str]]], prefix: str = "") -> None:
    """Put the lines of each part between its marks, where the page is there."""
    path = docs / PAGE
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    for name, lines in parts.items():
        text = filled(text, prefix + name, lines)
    path.write_text(text, encoding="utf-8")


def filled(text: str, name: str, lines: Callable[[], Iterator[str]]) -> str:
    place = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    if not place.search(text):
        return text
    body = "".join(f"{line}\n" for line in lines())
    return place.sub(lambda found: f"{found[1]}{body}{found[2]}", text)


# --------------------------------------------------------------------------------------------------------------- parts


def state(entry: Entry) -> Iterator[str]:
    rows = {name: row for name, row in entry["rows"].items() if not row["ensemble"]}
    done, planned = sum(len(row["seeds"]) for row in rows.values()), len(entry["planned"]) * entry["seeds"]
    splits = ", ".join(f"{count:,} {name}" for name, count in entry["data"]["splits"].items())
    yield f"**{done} of {planned} runs** ({len(entry['planned'])} rows × {entry['seeds']} seeds) are in these tables. "
    yield f"{entry['data']['name']}: {splits} images. `{entry['protocol']}`"
    runs = [cell for row in rows.values() for cell in row["runs"] if "steps" in cell]
    if runs:
        hours = sum(cell["processor_seconds"] for cell in runs) / 3600
        counts = Counter(cell["steps"] for cell in runs)
        steps = " or ".join(f"{count:,}" for count in sorted(counts))
        yield f"{entry['epochs']} epochs, {steps} steps; {hours:.1f} hours of one core in all."
    common = ", ".join(f"`{setting}`" for setting in entry["common"])
    yield ""
    yield f"All rows share {common}."


def table(entry: Entry, group: str) -> Iterator[str]:
    about, rows = TABLES[group], {n: row for n, row in entry["rows"].items() if group in row["groups"]}
    if not rows:
        yield "No run of this table has finished yet."
        return
    reference = entry["rows"].get(about.reference, {}).get("label", about.reference)
    extra = " log variance |" if about.sets else ""
    yield f"| | seeds | RSUM | image → text R@1 | text → image R@1 |{extra} RSUM − {reference} |"
    yield f"|---|---:|---:|---:|---:|{'---:|' if about.sets else ''}---:|"
    best = max((row["mean"]["rsum"][0] for row in rows.values() if row["mean"]), default=None)
    for name, row in rows.items():
        yield _line(name, row, about.sets, about.reference, best)


def _line(name: str, row: Mapping[str, Any], sets: bool, reference: str, best: float | None) -> str:
    label, seeds = row["label"], str(len(row["seeds"]))
    if row["stopped"]:
        label += f" (weights ran away in {len(row['stopped'])} of {seeds})"
    if not row["mean"]:
        return f"| {label} | {seeds} | – | – | – |{' – |' if sets else ''} – |"
    cells = [_mean(row["mean"][metric]) for metric in ("rsum", "i2t.r1", "t2i.r1")]
    if row["mean"]["rsum"][0] == best:
        cells[0] = f"**{cells[0]}**"
    if sets:
        cells.append(_mean(row["log_variance"], 2) if "log_variance" in row else "")
    apart = row.get("against", {}).get(reference)
    cells.append("" if name == reference else _difference(apart) if apart else "–")
    return f"| {label} | {seeds} | {' | '.join(cells)} |"


def claims(entry: Entry) -> Iterator[str]:
    found = entry["claims"]
    if not found:
        yield "No claim can be judged yet."
        return
    counted = Counter(each["verdict"] for each in found)
    yield "; ".join(f"{counted[name]} {name}" for name in (HELD, FAILED, NOISE, OPEN) if counted[name]) + "."
    yield ""
    yield "| claim | source | published | ours, 95 % interval | seeds | verdict |"
    yield "|---|---|---|---:|---:|---|"
    for each in found:
        digits = 2 if each["metric"] == "log_variance" else 1
        ours = _difference(each, digits) if each["b"] else _plain(each, digits)
        unit = f" {METRICS[each['metric']]}" if each["metric"] in METRICS else ""
        judged = BOLD.get(each["verdict"], each["verdict"])
        yield f"| {each['says']} | {each['source']} | {each['published']} | {ours}{unit} | {each['seeds']} | {judged} |"


def negatives(entry: Entry) -> Iterator[str]:
    shown = {"vse-2ad": "annealed", "adopt-printed": "Eq. 6 as printed", "adopt-official": "released formula"}
    rows = {label: entry["rows"][name] for name, label in shown.items() if name in entry["rows"]}
    cells = {label: [cell["negatives"] for cell in row["runs"] if "negatives" in cell] for label, row in rows.items()}
    if not any(cells.values()):
        yield "No run has finished yet."
        return
    yield "| negatives, mean of the first and last ten steps | an image's, among captions | a caption's, among images |"
    yield "|---|---:|---:|"
    for label, some in cells.items():
        if some:
            ends = [
                " → ".join(f"{sum(each[way][end] for each in some) / len(some):.1f}" for end in ("first", "last"))
                for way in ("i2t", "t2i")
            ]
            yield f"| {label} | {ends[0]} | {ends[1]} |"


def cost(entry: Entry) -> Iterator[str]:
    found = entry.get("cost")
    if not found or not found["rows"]:
        yield "Not measured yet."
        return
    rows = list(found["rows"].values())
    first = rows[0]
    yield f"× is relative to {first['label']}. {found['gallery'][0]} captions search {found['gallery'][1]:,} images for"
    yield f"the first 10, exhaustively; medians of {found['rounds']} rounds, processor time."
    yield ""
    yield "| | vectors | parameters trained | s per 1,000 pairs trained | bytes per item, float16 | ms per query |"
    yield "|---|---:|---:|---:|---:|---:|"
    for row in rows:
        cells = [
            f"{row['vectors']} × {row['dim']}",
            *(
                _relative(row[key], first[key], digits)
                for key, digits in (("trained_parameters", 0), ("train_seconds", 2), ("bytes", 0), ("ms_per_query", 3))
            ),
        ]
        yield f"| {row['label']} | {' | '.join(cells)} |"


def flattery(entry: Entry) -> Iterator[str]:
    found = entry["flattery"]
    if found is None:
        yield "No run has finished yet."
        return
    yield f"Picking the best of a run's validations instead of the last would have added {found['mean']:.1f} RSUM on"
    yield f"average and {found['most']:.1f} at most ({found['runs']} runs)."


def rates(entry: Entry) -> Iterator[str]:
    """Rows at this rate of learning and at another one, over the seeds that both have."""
    beside = entry.get("beside")
    both = {name: row for name, row in entry["rows"].items() if beside and name in beside["rows"] and row["runs"]}
    if not both:
        yield "Not measured yet."
        return
    slow, fast = [], []
    for name, row in both.items():
        seeds = beside["rows"][name]["seeds"]
        runs = [cell["figures"]["rsum"] for cell in row["runs"] if cell["seed"] in seeds and "figures" in cell]
        if runs:
            slow.append((beside["rows"][name]["rsum"], row["label"]))
            fast.append(fmean(runs))
    here, there = (_rate(each["common"]) for each in (entry, beside))
    gains = [now - before for now, (before, _) in zip(fast, slow, strict=True)]
    order = np.corrcoef(_places([before for before, _ in slow]), _places(fast))[0, 1]
    yield f"{here} instead of {there} adds {min(gains):.1f} to {max(gains):.1f} RSUM to {len(fast)} rows;"
    yield f"the rank correlation between the two columns is {order:.2f}."
    yield ""
    yield f"| | RSUM at {there} | at {here} | gain |"
    yield "|---|---:|---:|---:|"
    for (before, label), now in zip(slow, fast, strict=True):
        yield f"| {label} | {before:.1f} | {now:.1f} | {now - before:+.1f} |"


def _places(values: Sequence[float]) -> list[int]:
    order = sorted(values)
    return [order.index(value) for value in values]


def _rate(common: Sequence[str]) -> str:
    """As the settings say it; the last one holds."""
    told = [found[1] for each in common if (found := re.search(r"\blr[:=] ?([\d.e-]+)", each))]
    return told[-1] if told else "the recipes' rates"


def defects(entry: Entry) -> Iterator[str]:
    found = entry["defects"]
    if not found:
        yield "No pair of runs has finished yet."
        return
    yield "| defect | where | seeds | RSUM with it | corrected | correcting it is worth | at test alone | |"
    yield "|---|---|---:|---:|---:|---:|---:|---|"
    for each in found:
        wrong, right = (_mean(entry["rows"][each[key]]["mean"]["rsum"]) for key in ("wrong", "right"))
        alone = "" if each["at_test_alone"] is None else f"{each['at_test_alone'][0]:+.1f}"
        yield (
            f"| {each['name']} | {each['where']} | {each['worth']['seeds']} | {wrong} | {right} | "
            f"{_difference(each['worth'])} | {alone} | {WORTH[each['verdict']]} |"
        )
    yield ""
    for each in found:
        yield f"- **{each['name']}.** {each['does']}"


def picture(name: str, drawn: Mapping[str, str]) -> Iterator[str]:
    if name in drawn:
        yield f"![{ALT[name]}](../images/{drawn[name]})"


# ------------------------------------------------------------------------------------------------------------- numbers


def _mean(held: tuple[float, float | None], digits: int = 1) -> str:
    mean, spread = held
    return f"{mean:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def _difference(apart: Mapping[str, Any], digits: int = 1) -> str:
    """A gain with its interval. With one seed the interval knows of other images alone."""
    mean, interval = f"{apart['mean']:+.{digits}f}", apart["interval"]
    return mean if interval is None else f"{mean} [{interval[0]:+.{digits}f}, {interval[1]:+.{digits}f}]"


def _plain(held: Mapping[str, Any], digits: int) -> str:
    mean, interval = f"{held['mean']:.{digits}f}", held["interval"]
    return mean if interval is None else f"{mean} [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"


def _relative(value: float | None, reference: float | None, digits: int) -> str:
    if value is None:
        return "–"
    told = f"{value:,.{digits}f}"
    return told if not reference else f"{told} ({value / reference:.2f} ×)"
