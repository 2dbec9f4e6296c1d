"""The first half of docs/benchmarks/results.md, over DINOv2 tokens, written from results-dinov2.json between
`<!-- dinov2-NAME -->` and `<!-- /dinov2-NAME -->`. What stands outside the marks was written by hand and stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from results_dinov2_claims import CONTRADICTED, HELD, OPEN, UNSEEN
from results_page import fill_page

Entry = Mapping[str, Any]
PREFIX = "dinov2-"
ALT = {
    "sets": "Sets minus their twins and minus single vectors of as many bytes, with intervals",
    "search": "RSUM of the held-out tenth by epochs",
}
FIGURES = {
    "rsum": "RSUM",
    "i2t.r1": "image → text R@1",
    "t2i.r1": "text → image R@1",
    "i2t.map_at_r": "mAP@R",
    "i2t.r_precision": "R-precision",
    "nouns.map": "nouns mAP",
    "nouns.precision10": "P@10",
    "phrases.map": "phrases mAP",
    "phrases.precision10": "P@10",
}
COMPARED = {name: title for name, title in FIGURES.items() if not name.endswith(".r1")}


def write(entry: Entry, docs: Path, drawn: Mapping[str, str]) -> None:
    """Fill the page, where it is there. drawn: files of figures by name."""
    parts: dict[str, Callable[[], Iterator[str]]] = {
        "state": lambda: state(entry),
        "rows": lambda: rows(entry),
        "sets": lambda: sets(entry),
        "claims": lambda: claims(entry),
        "search": lambda: search(entry),
        **{f"figure-{name}": (lambda name=name: picture(name, drawn)) for name in ALT},
    }
    fill_page(docs, parts, PREFIX)


def state(entry: Entry) -> Iterator[str]:
    done, planned = sum(len(row["seeds"]) for row in entry["rows"].values()), len(entry["planned"]) * entry["seeds"]
    trials = [trial for each in entry["search"].values() for trial in each["trials"]]
    spent = sum(cell["processor_seconds"] for row in entry["rows"].values() for cell in row["runs"])
    spent += sum(trial["processor_seconds"] for trial in trials)
    yield f"**{done} of {planned} runs** ({len(entry['planned'])} rows × {entry['seeds']} seeds) are in these tables,"
    yield f"after {len(trials)} trials of the search; {spent / 60:.0f} minutes of one core in all."
    yield "" if not entry["protocols"] else "\n" + "  \n".join(f"`{stamp}`" for stamp in entry["protocols"].values())
    if missing := [name for name in entry["planned"] if name not in entry["rows"]]:
        yield ""
        yield f"Not trained yet: {', '.join(f'`{name}`' for name in missing)}."
    yield ""
    yield f"All rows share {', '.join(f'`{setting}`' for setting in entry['common'])}."


def rows(entry: Entry) -> Iterator[str]:
    """All rows with all figures; the best of each column in bold."""
    held = {name: row for name, row in entry["rows"].items() if row["mean"]}
    if not held:
        yield "No run has finished yet."
        return
    best = {
        name: max((row["mean"][name][0] for row in held.values() if name in row["mean"]), default=None)
        for name in FIGURES
    }
    yield f"| | numbers of an image | seeds | {' | '.join(FIGURES.values())} | log variance |"
    yield f"|---|---:|---:|{'---:|' * len(FIGURES)}---:|"
    for row in entry["rows"].values():
        seeds, cells = len(row["seeds"]), []
        for name in FIGURES:
            told = _mean(row["mean"][name]) if name in row["mean"] else "–"
            cells.append(f"**{told}**" if name in row["mean"] and row["mean"][name][0] == best[name] else told)
        size = next((f"{cell['set_sizes'][0]} × {cell['dim']}" for cell in row["runs"] if "dim" in cell), "–")
        label = row["label"] + (f" (weights diverged in {len(row['stopped'])} of {seeds})" if row["stopped"] else "")
        spread = _mean(row["log_variance"], 2) if "log_variance" in row else ""
        yield f"| {label} | {size} | {seeds} | {' | '.join(cells)} | {spread} |"


def sets(entry: Entry) -> Iterator[str]:
    """Every set minus its K = 1 twin and minus a single vector of its bytes."""
    lines = []
    for row in entry["rows"].values():
        for role, title in (("twin", "its K = 1 twin"), ("equal_bytes", "as many bytes")):
            if role in row:
                other, against = entry["rows"][row[role]["row"]], row[role]["against"]
                cells = [_difference(against[name]) if name in against else "–" for name in COMPARED]
                named = other["label"].removeprefix("… ")
                shown = (
                    title if named.startswith(title) else f"{title}: {named.removeprefix('one vector of its bytes, ')}"
                )
                lines.append(f"| {row['label']} | {shown} | {against['rsum']['seeds']} | {' | '.join(cells)} |")
    if not lines:
        yield "No set and its twin have finished yet."
        return
    yield f"| | minus | seeds | {' | '.join(COMPARED.values())} |"
    yield f"|---|---|---:|{'---:|' * len(COMPARED)}"
    yield from lines


def claims(entry: Entry) -> Iterator[str]:
    found = entry["claims"]
    if not found:
        yield "No claim can be judged yet."
        return
    counted = Counter(each["verdict"] for each in found)
    told = [f"{counted[name]} {name}" for name in (HELD, CONTRADICTED, UNSEEN, OPEN) if counted[name]]
    yield f"{'; '.join(told)}."
    yield ""
    yield "| claim | source | published | ours, interval corrected by Holm | seeds | verdict |"
    yield "|---|---|---|---:|---:|---|"
    for each in found:
        digits = 2 if each["metric"] == "log_variance" else 1
        unit = "" if each["metric"] == "rsum" else f" {FIGURES.get(each['metric'], 'log variance')}"
        judged = f"**{each['verdict']}**" if each["verdict"] in (HELD, CONTRADICTED) else each["verdict"]
        ours = _difference(each, digits, clear=False)
        yield f"| {each['says']} | {each['source']} | {each['published']} | {ours}{unit} | {each['seeds']} | {judged} |"


def search(entry: Entry) -> Iterator[str]:
    """What every search tried and chose."""
    found = {name: each for name, each in entry["search"].items() if each["chosen"]}
    if not found:
        yield "No search has finished yet."
        return
    kinds = sorted(
        {(t["epochs"], *t["dropout"], float(t["rate"]), t["rate"]) for each in found.values() for t in each["trials"]}
    )
    heads = [f"{rate}, {image:g} / {text:g}, {epochs}" for epochs, image, text, _, rate in kinds]
    yield "RSUM of the held-out tenth by rate, dropout (images / texts) and epochs; what was chosen is bold."
    yield ""
    yield f"| | {' | '.join(heads)} |"
    yield f"|---|{'---:|' * len(kinds)}"
    for each in found.values():
        told = {(t["epochs"], *t["dropout"], t["rate"]): _rsum(t, each["chosen"]) for t in each["trials"]}
        cells = [told.get((epochs, image, text, rate), "") for epochs, image, text, _, rate in kinds]
        yield f"| {each['label']} | {' | '.join(cells)} |"


def picture(name: str, drawn: Mapping[str, str]) -> Iterator[str]:
    if name in drawn:
        yield f"![{ALT[name]}](../images/{drawn[name]})"


def _rsum(trial: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    told = "diverged" if trial["rsum"] is None else f"{trial['rsum']:.1f}"
    return f"**{told}**" if all(trial[key] == chosen[key] for key in ("rate", "dropout", "epochs")) else told


def _mean(held: tuple[float, float | None], digits: int = 1) -> str:
    mean, spread = held
    return f"{mean:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def _difference(apart: Mapping[str, Any], digits: int = 1, clear: bool = True) -> str:
    """A gain with its interval, in bold where that is clear of zero. With one seed it knows of other items alone."""
    mean, interval = f"{apart['mean']:+.{digits}f}", apart["interval"]
    if interval is None:
        return mean
    told = f"{mean} [{interval[0]:+.{digits}f}, {interval[1]:+.{digits}f}]"
    return f"**{told}**" if clear and apart["seeds"] > 1 and (interval[0] > 0 or interval[1] < 0) else told
