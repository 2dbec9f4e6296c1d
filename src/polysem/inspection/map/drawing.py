"""A map on disk: one page to explore (zoom, pan, hover; it loads nothing from outside), or a picture for papers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from polysem.data.collection import Collection
from polysem.errors import InputError
from polysem.inspection.gallery import StorePath, open_gallery
from polysem.inspection.map.layout import LIMIT, Map, MapPoints, Method, lay_out, make_points
from polysem.inspection.output import PICTURES, check_output_path, replace_output
from polysem.models import Model
from polysem.progress import Progress
from polysem.training.charts import render_page

MapColour = Literal["slot", "label"]
ENDINGS = (".html", *PICTURES)
# Colours that colour-blind readers tell apart (after Okabe and Ito), on light and on dark paper.
LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#7A4FBF", "#6B6B6B")
DARK = ("#4FA8E0", "#F0803C", "#2FC79B", "#E8A3C8", "#E8B93F", "#9AD6F8", "#B59AF0", "#A8A8A8")
_RESOLUTION = 30_000
"""Positions on the page are whole numbers up to this: finer than any screen."""
_MARKERS = {"image": "o", "text": "^"}


def map_space(
    subject: str | Path | Model | MapPoints | Sequence[MapPoints],
    data: str | Path | Collection | None = None,
    *,
    out: str | Path | None = None,
    split: str | None = None,
    method: Method = "tsne",
    colour: MapColour = "slot",
    pairs: bool = False,
    limit: int = LIMIT,
    seed: int = 0,
    features: StorePath = None,
    text_features: StorePath = None,
    progress: Progress | None = None,
) -> Map:
    """The joint space of images and texts as a map in two dimensions.

    Args:
        subject: a model or its folder, and then `data` is the collection to show; or `MapPoints`.
        out: where to draw it, a .html page to explore or a picture (.png, .svg, .pdf).
        colour: what colours tell, the element's number in its set ("slot") or its item's label.
        pairs: join captions to their images. The rest as for `lay_out` and `evaluate`.

    Example:
        >>> import numpy as np
        >>> photos = MapPoints(np.random.rand(20, 2, 8), "image", [f"photo {i}" for i in range(20)])
        >>> map_space(photos, method="pca", out="map.html").positions.shape
        (40, 2)
    """
    path = None if out is None else check_output_path("a map", out, ENDINGS)
    if colour not in ("slot", "label"):
        raise InputError(f"Colours tell the slot or the label, got {colour!r}.")
    if isinstance(subject, (str, Path, Model)):
        if data is None:
            raise InputError("A model needs a collection whose items to show: give --data.")
        # Items alone decide how much there is to encode; a little more than fits is cut down later.
        gallery = open_gallery(
            subject, data, split=split, features=features, text_features=text_features, limit=limit, progress=progress
        )
        points, title = make_points(gallery), f"{gallery.name} on {gallery.items.name} {gallery.split}"
    else:
        points, title = [subject] if isinstance(subject, MapPoints) else list(subject), "The joint space"
    result = lay_out(points, method=method, pairs=pairs, limit=limit, seed=seed, progress=progress)
    if path is not None:
        write_map(result, path, title=title, colour=colour)
    return result


def write_map(layout: Map, out: str | Path, *, title: str = "The joint space", colour: MapColour = "slot") -> Path:
    """Draw a map: a page or a picture, by the ending of `out`."""
    path = check_output_path("a map", out, ENDINGS)
    if colour == "label" and not layout.labels:
        raise InputError("These items have no labels to colour by. Leave --colour out: colours then tell the slots.")
    with replace_output("the map", path) as temporary:
        if path.suffix.lower() == ".html":
            temporary.write_text(_render_html(layout, title, colour), encoding="utf-8")
        else:
            _save_picture(layout, temporary, title, colour)
    return path


def _colour_classes(layout: Map, colour: str) -> tuple[npt.NDArray[np.int64], list[str]]:
    """(m,) the colour of each element, and what the colours are called."""
    if colour == "slot":
        return layout.slot, [f"element {number + 1}" for number in range(layout.slots)]
    number = {label: i for i, label in enumerate(layout.labels)}
    return np.array([number[str(item.label)] for item in layout.items], np.int64)[layout.item], list(layout.labels)


def _render_html(layout: Map, title: str, colour: str) -> str:
    low = layout.positions.min(0)
    width = float((layout.positions.max(0) - low).max()) or 1.0
    positions = np.rint((layout.positions - low) / width * _RESOLUTION).astype(int)
    colourings = []
    for name in ("slot", "label") if layout.labels else ("slot",):
        classes, names = _colour_classes(layout, name)
        colourings.append({"name": name, "of": classes.tolist(), "names": names})
    content = {
        "x": positions[:, 0].tolist(),
        "y": positions[:, 1].tolist(),
        "item": layout.item.tolist(),
        "slot": layout.slot.tolist(),
        "items": [[each.id, each.side, each.text, each.partner] for each in layout.items],
        "colourings": colourings,
        "colour": colour,
        "lines": layout.lines.tolist(),
        "light": LIGHT,
        "dark": DARK,
    }
    # No text may end the script element: "<" is written as an escape.
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    counts = f"{len(layout.positions):,} elements of {len(layout.items):,} items"
    values = {"title": title, "counts": counts, "notes": layout.notes, "data": Markup(data)}
    return render_page("polysem.inspection.map", "map.html", **values)


def _save_picture(layout: Map, path: Path, title: str, colour: str) -> None:
    """Write a .png, .svg or .pdf: colours tell the slot (or label), shapes the modality."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(8.6, 7.0), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11)
    axes.set(xticks=[], yticks=[])
    axes.set_aspect("equal", adjustable="datalim")
    axes.spines[:].set_color("#c8c8c8")
    if len(layout.lines):
        segments = list(layout.positions[layout.lines])
        axes.add_collection(LineCollection(segments, colors="#808080", linewidths=0.4, alpha=0.35))
    classes, names = _colour_classes(layout, colour)
    sides = np.array([item.side for item in layout.items])[layout.item]
    size = float(np.clip(30_000 / max(1, len(layout.positions)), 4, 36))
    # In random order, so that what is drawn last does not cover all the rest.
    order = np.random.default_rng(0).permutation(len(layout.positions))
    for part in np.array_split(order, max(1, min(40, len(order) // 50))):
        for side, marker in _MARKERS.items():
            rows = part[sides[part] == side]
            colours = [LIGHT[number % len(LIGHT)] for number in classes[rows]]
            x, y = layout.positions[rows].T
            axes.scatter(x, y, s=size, marker=marker, c=colours, alpha=0.75, linewidths=0)

    def handle(marker: str, colour: str, label: str) -> Any:
        return Line2D([], [], linestyle="", marker=marker, markersize=6, color=colour, label=label)

    handles = [handle("s", LIGHT[i % len(LIGHT)], name) for i, name in enumerate(names)]
    handles += [handle(mark, "#444444", f"{side}s") for side, mark in _MARKERS.items() if bool((sides == side).any())]
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    figure.text(0.01, -0.01, "\n".join(layout.notes), fontsize=7, color="#555555", va="top", wrap=True)
    figure.savefig(path, bbox_inches="tight", pad_inches=0.15)
