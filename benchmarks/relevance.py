"""Where to cut a ranking, and from which cosine on pictures are near-duplicates, measured where the truth is known.

Cuts. Queries name things ("a dog", "a dog and an apple", "an animal") or are captions; relevant are the pictures whose
labels hold all that is named. Others name what is not there. The cut of `polysem.search.relevance` is compared with
flat thresholds (the best for these very queries; chosen on other queries; chosen on the val pictures), the first ten,
the usual per-query rules with their constants chosen on the val pictures, and the best cut of each single query. F1 is
averaged over the queries of a kind, then over kinds. Of a collection without labels only captions are asked, and only
their own picture counts as relevant, which understates every cut.

Duplicates. Pictures are compressed, shrunk, cropped and brightened; found again should be the original and no other.

    python benchmarks/relevance.py runs/small-dive --data scenes --features scenes-grid --whole
    python benchmarks/relevance.py runs/photos --data photos --features photos-grid --split val

Results are added to benchmarks/results/relevance.json under the names of data and model.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from rich.console import Console
from rich.progress import track
from rich.table import Table

from polysem import load
from polysem.data.collection import Collection
from polysem.data.images import load_image
from polysem.data.readers import open_collection
from polysem.data.store import FeatureStore
from polysem.models import Model
from polysem.search.query import THRESHOLD, compare_sets
from polysem.search.relevance import find_cut
from polysem.synthetic.scenes import catalogue
from polysem.synthetic.scenes.catalogue import load_kinds

RESULTS = Path(__file__).parent / "results" / "relevance.json"
PAIRS, CAPTIONS, ABSENT_PAIRS, COPIED, SAMPLE = 200, 200, 100, 200, 2000
# fmt: off
FOREIGN = (
    "a stapler", "a volcano", "a chessboard", "a wedding ring", "a submarine", "a dentist at work",
    "a satellite dish", "a circuit board", "a vacuum cleaner", "a chandelier", "a newspaper headline",
    "a stock market chart", "a hospital corridor", "a map of Europe", "a passport", "a pile of laundry", "a bathtub",
    "an x-ray of a hand", "a cathedral window", "a microscope", "a courtroom", "a handwritten letter",
    "a swimming pool", "a lawn mower", "a traffic jam at night", "a bride and a groom", "a toothbrush",
)
# fmt: on
THRESHOLDS = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98)
Count = Callable[["Query"], int]


@dataclass(frozen=True, eq=False)
class Query:
    """Scores of the gallery, best first, and which of them are right."""

    kind: str
    scores: np.ndarray
    right: np.ndarray

    @property
    def answerable(self) -> bool:
        return bool(self.right.any())

    def f1(self) -> np.ndarray:
        """F1 of every cut: of the first, of the first two, ..."""
        return 2 * np.cumsum(self.right) / (np.arange(1, len(self.scores) + 1) + self.right.sum())

    def at(self, count: int) -> tuple[float, float, float]:
        """F1, precision and recall; a cut that keeps nothing has none of them."""
        hits = int(self.right[:count].sum())
        precision, recall = hits / max(1, count), hits / int(self.right.sum())
        return 2 * hits / (count + int(self.right.sum())), precision, recall


# ---------------------------------------------------------------------------------------------------- the queries


def sentences(gallery: Collection) -> Iterator[tuple[str, str, np.ndarray]]:
    """Kind, text and truth of every query."""
    rng, held = random.Random(0), [set(item.labels) for item in gallery]
    owners, captions = gallery.caption_items, gallery.captions
    if not gallery.label_names:
        for place in sorted(rng.sample(range(len(captions)), min(5 * CAPTIONS, len(captions)))):
            yield "caption", captions[place], np.arange(len(gallery)) == owners[place]
        yield from (("foreign", text, np.zeros(len(gallery), bool)) for text in FOREIGN)
        return
    kinds = {each.name: each.group for each in load_kinds()}

    def truth(names: Sequence[str]) -> np.ndarray:
        return np.array([all(name in labels for name in names) for labels in held])

    present = sorted(set(gallery.label_names) & set(kinds))
    yield from (("one thing", catalogue.indefinite_phrase(name), truth([name])) for name in present)
    together = sorted({(a, b) for labels in held for a in labels for b in labels if a < b and {a, b} <= set(kinds)})
    for a, b in rng.sample(together, PAIRS):
        yield "two things", f"{catalogue.indefinite_phrase(a)} and {catalogue.indefinite_phrase(b)}", truth([a, b])
    for group in sorted(set(kinds.values()) & set(gallery.label_names)):
        yield "group", catalogue.indefinite_phrase(group), truth([group])
    for place in rng.sample(range(len(captions)), CAPTIONS):
        if named := _named(captions[place], set(gallery[int(owners[place])].labels) & set(kinds)):
            yield "caption", captions[place], truth(named)
    absent = sorted(set(kinds) - set(present))
    yield from (("absent thing", catalogue.indefinite_phrase(name), truth([name])) for name in absent)
    for _ in range(ABSENT_PAIRS):
        a, b = rng.sample(present, 2)
        while truth([a, b]).any():
            a, b = rng.sample(present, 2)
        yield "absent pair", f"{catalogue.indefinite_phrase(a)} and {catalogue.indefinite_phrase(b)}", truth([a, b])
    yield from (("foreign", text, truth([text])) for text in FOREIGN)


def _named(caption: str, names: set[str]) -> list[str]:
    """Those of the names that the caption says; the longest first, so that a fir tree is no tree."""
    found, rest = [], caption.lower()
    for name in sorted(names, key=lambda each: (-len(each), each)):
        words = "|".join(
            re.escape(form) for form in (catalogue.name_noun(name, several=True), catalogue.name_noun(name), name)
        )
        rest, times = re.subn(rf"\b(?:{words})\b", "#", rest)
        found += [name] if times else []
    return found


def asked(model: Model, gallery: Collection, images: torch.Tensor) -> list[Query]:
    every = list(sentences(gallery))
    with torch.inference_mode():
        texts = model.encode_texts([text for _, text, _ in every])
        scores = model.similarity(images, texts).T.double().numpy()
    found = []
    for (kind, _, right), row in zip(every, scores, strict=True):
        order = np.argsort(-row, kind="stable")
        found.append(Query(kind, row[order], right[order]))
    return found


# ---------------------------------------------------------------------------------------------------- the cuts


def ours(query: Query) -> int:
    size = len(query.scores)
    sample = np.random.default_rng(0).choice(query.scores, min(SAMPLE, size), replace=False)
    return find_cut(query.scores, sample, size).count


def flat(threshold: float) -> Count:
    return lambda query: int((query.scores >= threshold).sum())


def best_cut(query: Query) -> int:
    return int(query.f1().argmax() + 1) if query.answerable else 0


def z_score(query: Query) -> np.ndarray:
    centre = np.median(query.scores)
    return (query.scores - centre) / (1.4826 * np.median(np.abs(query.scores - centre)))


def tail(query: Query) -> np.ndarray:
    """Of how many items a normal bulk would have at each score."""
    return len(query.scores) * torch.special.erfc(torch.from_numpy(z_score(query)) / 2**0.5).numpy() / 2


def discoveries(query: Query, rate: float) -> int:
    kept = np.flatnonzero(tail(query) / np.arange(1, len(query.scores) + 1) <= rate)
    return int(kept[-1] + 1) if len(kept) else 0


def knee(query: Query, first: int) -> int:
    scores = query.scores[:first]
    return int((1 - np.linspace(0, 1, first) - (scores - scores[-1]) / max(1e-12, scores[0] - scores[-1])).argmax())


def otsu(query: Query, first: int) -> int:
    total, k = np.cumsum(query.scores[:first]), np.arange(1, first)
    apart = total[:-1] / k - (total[-1] - total[:-1]) / (first - k)
    return int((k * (first - k) * apart**2).argmax() + 1)


RULES: dict[str, tuple[Callable[[Query, Any], int], Sequence[float]]] = {
    "first n": (lambda _, n: n, (1, 2, 3, 5, 7, 15, 20)),
    "z-score": (lambda query, z: int((z_score(query) >= z).sum()), np.arange(1, 4.5, 0.1).tolist()),
    "E-value": (lambda query, e: int((tail(query) <= e).sum()), (0.01, 0.03, 0.1, 0.3, 1, 2, 3, 5, 10)),
    "false discovery rate": (discoveries, (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)),
    "largest gap of the first n": (lambda q, n: int(np.diff(q.scores[: n + 1]).argmin() + 1), (5, 10, 20, 50, 100)),
    "knee of the first n": (knee, (10, 20, 50, 100)),
    "Otsu's split of the first n": (otsu, (10, 20, 50, 100)),
}


def _with(rule: Callable[[Query, Any], int], value: float, query: Query) -> int:
    return rule(query, value)


def macro(queries: Sequence[Query], values: np.ndarray) -> Any:
    """The mean over the kinds of answerable queries; values: one for each query, or a column for each of several."""
    kinds = np.array([query.kind if query.answerable else "" for query in queries])
    return np.mean([values[kinds == kind].mean(0) for kind in sorted(set(kinds) - {""})], axis=0)


def f1_of(queries: Sequence[Query], count: Count) -> np.ndarray:
    return np.array([query.at(count(query))[0] if query.answerable else np.nan for query in queries])


def best_flat(queries: Sequence[Query]) -> float:
    """The one threshold with the highest mean F1, of 1000 between the lowest median and the highest score."""
    low, high = min(np.median(each.scores) for each in queries), max(each.scores[0] for each in queries)
    tried = np.linspace(low, high, 1000)
    f1 = np.full((len(queries), len(tried)), np.nan)
    for row, query in zip(f1, queries, strict=True):
        if query.answerable:
            row[:] = np.append(0, query.f1())[np.searchsorted(-query.scores, -tried, side="right")]
    return float(tried[macro(queries, f1).argmax()])


def cuts(queries: list[Query], chosen_on: list[Query] | None) -> dict[str, Any]:
    """Every way to cut, on the queries of one gallery. chosen_on: queries of the gallery that constants come from."""
    halves = [queries[::2], queries[1::2]]
    from_half = [best_flat(half) for half in halves]
    place = {id(query): number % 2 for number, query in enumerate(queries)}
    ways: dict[str, Count] = {
        "ours": ours,
        "flat, the best for these queries": flat(best_flat(queries)),
        "flat, chosen on other queries": lambda query: flat(from_half[1 - place[id(query)]])(query),
        "first 10": lambda _: 10,
        "the best cut of each query": best_cut,
    }
    if chosen_on is not None:
        ways["flat, chosen on val pictures"] = flat(best_flat(chosen_on))
        for name, (rule, values) in RULES.items():
            tried = {value: partial(_with, rule, value) for value in values}
            at = max(tried, key=lambda value, tried=tried: macro(chosen_on, f1_of(chosen_on, tried[value])))
            ways[f"{name}: {at:.3g}"] = tried[at]
    found = {name: measured(queries, count) for name, count in track(ways.items(), "cutting", transient=True)}
    mine, theirs = f1_of(queries, ours), f1_of(queries, ways["flat, the best for these queries"])
    rng, ratios = np.random.default_rng(0), []
    for _ in range(1000):
        drawn = rng.integers(0, len(queries), len(queries))
        some = [queries[i] for i in drawn]
        ratios.append(float(macro(some, mine[drawn]) / macro(some, theirs[drawn])))
    ratio = {name: found["ours"]["f1"] / figures["f1"] for name, figures in found.items() if name != "ours"}
    judged = [find_cut(each.scores, each.scores, len(each.scores)).doubtful for each in queries]
    doubt = {kind: _mean(queries, kind, judged) for kind in dict.fromkeys(each.kind for each in queries)}
    return {
        "pictures": len(queries[0].scores),
        "queries": {kind: sum(each.kind == kind for each in queries) for kind in doubt},
        "relevant_per_query": {
            kind: _mean(queries, kind, [int(each.right.sum()) for each in queries]) for kind in doubt
        },
        "ways": found,
        "f1_of_ours_over": ratio,
        "interval_over_best_flat": np.percentile(ratios, [2.5, 97.5]).tolist(),
        "called_doubtful": doubt,
    }


def measured(queries: Sequence[Query], count: Count) -> dict[str, Any]:
    counts = [count(query) for query in queries]
    per = {
        name: np.array([q.at(n)[place] if q.answerable else np.nan for q, n in zip(queries, counts, strict=True)])
        for place, name in enumerate(("f1", "precision", "recall"))
    }
    kinds = list(dict.fromkeys(each.kind for each in queries if each.answerable))
    empty = list(dict.fromkeys(each.kind for each in queries if not each.answerable))
    return {
        **{name: float(macro(queries, values)) for name, values in per.items()},
        "f1_by_kind": {kind: _mean(queries, kind, per["f1"]) for kind in kinds},
        "kept": {kind: _mean(queries, kind, counts) for kind in [*kinds, *empty]},
        "kept_nothing": {kind: _mean(queries, kind, [n == 0 for n in counts]) for kind in empty},
    }


def _mean(queries: Sequence[Query], kind: str, values: Any) -> float:
    return float(np.mean(np.asarray(values)[[each.kind == kind for each in queries]]))


def made_up() -> list[dict[str, float]]:
    """Normal scores, some of them raised: what the cut keeps when the truth is as clear as one likes."""
    rows, rng = [], np.random.default_rng(0)
    for size, share, raised in (
        *((size, 0.0, 0.0) for size in (20, 200, 2000, 100_000, 1_000_000)),
        *((size, share, raised) for size in (200, 20_000) for share in (0.01, 1 / 3) for raised in (3.0, 4.0, 5.0)),
    ):
        kept, f1 = [], []
        for _ in range(3 if size > 50_000 else 20):
            right = np.arange(size) < share * size
            query = rng.standard_normal(size) + raised * right
            order = np.argsort(-query)
            made = Query("made up", query[order], right[order])
            kept.append(ours(made))
            f1.append(made.at(kept[-1])[0] if made.answerable else 0.0)
        rows.append(
            {"items": size, "relevant": share, "raised": raised, "kept": float(np.mean(kept)), "f1": float(np.mean(f1))}
        )
    return rows


# ---------------------------------------------------------------------------------------------------- duplicates


def copies(picture: Image.Image) -> dict[str, Image.Image]:
    width, height = picture.size
    stored = io.BytesIO()
    picture.save(stored, "jpeg", quality=40)
    edge = (width // 25, height // 25, width - width // 25, height - height // 25)
    return {
        "JPEG at quality 40": Image.open(stored).convert("RGB"),
        "half the size": picture.resize((width // 2, height // 2)),
        "4 % cropped from each edge": picture.crop(edge),
        "20 % brighter": ImageEnhance.Brightness(picture).enhance(1.2),
    }


def duplicates(model: Model, gallery: Collection, images: torch.Tensor) -> dict[str, Any]:
    """Each copy of some of the gallery against its original; every picture of `images` against every other one."""
    chosen = sorted(random.Random(0).sample(range(len(gallery)), min(COPIED, len(gallery))))
    made: dict[str, list[Image.Image]] = {"unchanged": []}
    for place in track(chosen, "making copies", transient=True):
        picture = load_image(gallery[place].media.path).convert("RGB")
        made["unchanged"].append(picture)
        for name, copy in copies(picture).items():
            made.setdefault(name, []).append(copy)
    sets = {
        name: model.encode_images(pictures).numpy()
        for name, pictures in track(made.items(), "encoding", transient=True)
    }
    alike = {
        name: np.array([compare_sets(one, other[None])[0] for one, other in zip(sets["unchanged"], these, strict=True)])
        for name, these in sets.items()
        if name != "unchanged"
    }
    whole = images.numpy()
    folded, nearest = np.zeros(len(THRESHOLDS)), np.empty(len(whole))
    for place, one in enumerate(track(whole, "comparing", transient=True)):
        others = np.delete(compare_sets(one, whole), place)
        folded += [np.count_nonzero(others >= at) for at in THRESHOLDS]
        nearest[place] = others.max()
    pairs = len(whole) * (len(whole) - 1) // 2
    rows = []
    for at, both_ways in zip(THRESHOLDS, folded, strict=True):
        found = {name: float((values >= at).mean()) for name, values in alike.items()}
        recall, wrong = float(np.mean(list(found.values()))), float((nearest >= at).mean())
        rows.append(
            {
                "threshold": at,
                "recall": recall,
                "found": found,
                "different_pairs_folded": float(both_ways / 2 / pairs),
                "pictures_with_a_false_duplicate": wrong,
                "precision": recall / (recall + wrong) if recall + wrong else 1.0,
            }
        )
    quantiles = {name: np.percentile(values, [1, 5, 50]).tolist() for name, values in alike.items()}
    return {
        "copied": len(chosen),
        "pictures": len(whole),
        "different_pairs": pairs,
        "likeness_of_copies_1_5_50_percent": quantiles,
        "likeness_of_nearest_other_50_95_100_percent": np.percentile(nearest, [50, 95, 100]).tolist(),
        "thresholds": rows,
    }


# ---------------------------------------------------------------------------------------------------- the run


def encode(model: Model, collection: Collection, features: str) -> torch.Tensor:
    store = FeatureStore.open(features)
    places = store.positions([item.id for item in collection])
    parts = [places[first : first + 64] for first in range(0, len(places), 64)]
    return torch.cat([model.encode_images(store.batch(part)) for part in track(parts, "pictures", transient=True)])


def figure(path: Path, results: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = ["first 10", "flat, chosen on other queries", "flat, the best for these queries", "ours"]
    shown += ["the best cut of each query"]
    runs = [(name, gallery) for name, run in results.items() for gallery in run.get("cuts", {})]
    fig, axis = pyplot.subplots(figsize=(1.6 * len(runs) + 3, 3.6), layout="constrained")
    for place, way in enumerate(shown):
        heights = [results[name]["cuts"][gallery]["ways"][way]["f1"] for name, gallery in runs]
        axis.bar(np.arange(len(runs)) + 0.16 * (place - 2), heights, 0.15, label=way)
    axis.set_xticks(np.arange(len(runs)), [f"{name}\n{gallery}" for name, gallery in runs], fontsize=7)
    axis.set_ylabel("F1")
    axis.legend(fontsize=7, ncols=2)
    fig.savefig(path, dpi=120)


def show(console: Console, name: str, found: dict[str, Any]) -> None:
    for gallery, one in found.get("cuts", {}).items():
        table = Table("way", "F1", "precision", "recall", "kept where nothing is right", title=f"{name}: {gallery}")
        for way, row in sorted(one["ways"].items(), key=lambda entry: -entry[1]["f1"]):
            kept = ", ".join(f"{kind} {row['kept'][kind]:.1f}" for kind in row["kept_nothing"])
            table.add_row(way, *(f"{row[each]:.3f}" for each in ("f1", "precision", "recall")), kept)
        console.print(table)
        console.print("over the best flat:", one["interval_over_best_flat"], "doubtful:", one["called_doubtful"])
    if "duplicates" in found:
        table = Table("threshold", "recall", "pictures with a false one", "pairs folded", title=f"{name}: duplicates")
        for row in found["duplicates"]["thresholds"]:
            values = (row["recall"], row["pictures_with_a_false_duplicate"], row["different_pairs_folded"])
            table.add_row(str(row["threshold"]), *(f"{value:.5f}" for value in values))
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, help="folders of trained models")
    parser.add_argument("--data", required=True, help="the collection, with its pictures")
    parser.add_argument("--features", required=True, help="its store of image features")
    parser.add_argument("--split", default="test", help="the pictures to search; constants come from val")
    parser.add_argument("--whole", action="store_true", help="the whole collection too, training pictures included")
    parser.add_argument("--only", choices=("cuts", "duplicates"), help="measure one of the two")
    parser.add_argument("--figure", type=Path, help="draw all results so far into this file")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    console, collection = Console(), open_collection(given.data)
    results = json.loads(given.output.read_text()) if given.output.exists() else {}
    if "made up" not in results:
        results["made up"] = {"scores": made_up()}
    for folder in given.models:
        model = load(folder)
        part = collection.split(given.split)
        every = encode(model, collection if given.whole else part, given.features)
        chosen = [place for place, item in enumerate(collection) if item.split == given.split]
        images = every[chosen] if given.whole else every
        name = f"{collection.name}, {folder.name}"
        entry = results.setdefault(name, {})
        if given.only != "duplicates":
            val = collection.split("val")
            tuned = asked(model, val, encode(model, val, given.features)) if given.split != "val" else None
            entry["cuts"] = {f"{given.split}, {len(part)} pictures": cuts(asked(model, part, images), tuned)}
            if given.whole:
                whole = cuts(asked(model, collection, every), tuned)
                entry["cuts"][f"all, {len(collection)} pictures, trained on most"] = whole
        if given.only != "cuts":
            entry["duplicates"] = duplicates(model, part, every)
        results["default_duplicate_threshold"] = THRESHOLD
        show(console, name, entry)
        given.output.write_text(json.dumps(results, indent=1) + "\n")
    if given.figure is not None:
        figure(given.figure, {name: run for name, run in results.items() if isinstance(run, dict)})


if __name__ == "__main__":
    main()
