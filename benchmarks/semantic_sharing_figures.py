"""Figures 1 and 2 of the supplement of label-wise semantic sharing, drawn of our own runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from textwrap import fill
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from polysem.data.images import load_image
from polysem.inspection.diagnose.error_analysis import KINDS, NameFinder, classify_confusion
from polysem.inspection.gallery import EmbeddedGallery

COLOURS = {"micro_f1.image": "#7b3fa0", "micro_f1.text": "#2563b0", "i2t.ndcg50": "#2d8544", "t2i.ndcg50": "#c28a00"}
STYLES = ("-", ":")
SHOWN = ("super-class", "semantic")
EXAMPLES, ANSWERS = 2, 3


def epochs(path: Path, title: str, runs: Mapping[str, Sequence[Mapping[str, Any]]], names: Mapping[str, str]) -> None:
    """Figure 1: val, epoch by epoch, means over the seeds with their standard deviation. Solid: with consistency."""
    figure = Figure(figsize=(8.6, 5.0), dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for style, (which, cells) in zip(STYLES, runs.items(), strict=True):
        for column, colour in COLOURS.items():
            by_epoch = list(zip(*(cell["curves"][column] for cell in cells), strict=True))
            at = range(1, len(by_epoch) + 1)
            spread = [stdev(values) if len(values) > 1 else 0.0 for values in by_epoch]
            mean = [fmean(values) for values in by_epoch]
            axes.errorbar(
                at, mean, yerr=spread, capsize=2, color=colour, linestyle=style, label=f"{names[column]}, {which}"
            )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel("%, val")
    axes.set_title(f"{title}: classification and retrieval, with and without consistency", loc="left", fontsize=11)
    axes.grid(color="#e2e5e8", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path)


def failures(path: Path, gallery: EmbeddedGallery, ranked: Any, groups: Mapping[str, str]) -> None:
    """Figure 2: wrong first answers of both directions, sorted by what was confused."""
    items, captions = gallery.items, gallery.items.captions
    supers = set(groups.values()) - set(groups)
    labels = [frozenset(item.labels) - supers for item in items]
    names = NameFinder(label for own in labels for label in own)
    owners = items.caption_items.tolist()
    found = []
    for way, ranking in (("t2i", ranked["t2i"]), ("i2t", ranked["i2t"])):
        best = ranking.top.rank()[0]
        for kind in SHOWN:
            told, chosen = set[int](), 0
            for query in range(len(best)):
                text, image = (query, int(best[query, 0])) if way == "t2i" else (int(best[query, 0]), query)
                asking = owners[query] if way == "t2i" else query
                if owners[text] == image or asking in told or chosen == EXAMPLES:
                    continue
                sort, pairs = classify_confusion(
                    names.find(captions[text]) or labels[owners[text]], labels[image], groups
                )
                if sort == kind and pairs:
                    told.add(asking)
                    chosen += 1
                    found.append((way, kind, query, best[query, :ANSWERS].tolist(), pairs[0]))
    figure = Figure(figsize=(10.5, 2.2 * len(found) + 0.4), dpi=90, layout="constrained")
    FigureCanvasAgg(figure)
    for row, (way, kind, query, answers, (says, shows)) in enumerate(found):
        heading = f"{kind} confusion: {says} said, {shows} shown"
        cells = [
            ("text" if way == "t2i" else "image", query),
            *(("image" if way == "t2i" else "text", a) for a in answers),
        ]
        for column, (side, place) in enumerate(cells):
            axes = figure.add_subplot(len(found), 1 + ANSWERS, row * (1 + ANSWERS) + column + 1)
            right = column and (owners[place] == query if side == "text" else owners[query] == place)
            _cell(axes, side, place, gallery)
            head = heading if column == 0 else f"{column}.{' (its own)' if right else ''}"
            axes.set_title(fill(head, 34), fontsize=8, loc="left", color="#0b6e4f" if right else "#1b1f24")
            if column == 0:
                axes.set_facecolor("#f3f4f6")
    figure.savefig(path)


def _cell(axes: Any, side: str, place: int, gallery: EmbeddedGallery) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#c8ccd0")
    if side == "text":
        caption = fill(gallery.items.captions[place], 26)
        axes.text(0.5, 0.5, caption, ha="center", va="center", fontsize=9, transform=axes.transAxes, parse_math=False)
        return
    item = gallery.items[place]
    picture = load_image(item.media.path)
    picture.thumbnail((224, 224))
    axes.imshow(picture)
    axes.set_xlabel(fill(", ".join(item.labels), 36), fontsize=6)


__all__ = ["KINDS", "epochs", "failures"]
