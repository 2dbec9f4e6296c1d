"""The drawing for single vectors: pooling weights, tokens that supply the winning dimensions, parts of the score."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polysem.inspection.explain import panels
from polysem.inspection.explain.explanation import Explanation, Winning
from polysem.inspection.explain.theme import Theme
from polysem.inspection.words import word_weights


def lay_out_single(figure: Any, explanation: Explanation, theme: Theme) -> None:
    maps = (1 if explanation.winning is None else 3) + (explanation.picture is not None)
    cell = 2.6 * panels.aspect(explanation)
    width = max(cell * maps + 1.0, 9.5)
    lines = 0.28 * len(explanation.nearest[0]) + 0.5 if explanation.nearest else 0.05
    word_rows = 1 if explanation.winning is None else 3
    heights = [panels.title_height(explanation), 3.6, 0.55 * word_rows + 1.3, lines]
    figure.set_size_inches(width, sum(heights))
    title, top, middle, bottom = figure.subfigures(4, 1, height_ratios=heights)
    panels.show_title(title, explanation, theme)
    _maps(top, explanation, theme, maps)
    _words(middle, explanation, theme)
    _nearest(bottom, explanation, theme)


def _maps(part: Any, explanation: Explanation, theme: Theme, maps: int) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable

    axes = list(part.subplots(1, maps, squeeze=False)[0])
    if explanation.picture is not None:
        first = axes.pop(0)
        panels.show_picture(first, explanation.picture)
        first.set_title(panels.wrapped(explanation.image_name, 30, 1), fontsize=10)
    rows = _rows(explanation.image.weights[-1, 0], explanation, "image")
    scale, around = _norms(rows)
    for here, (name, values, signed) in zip(axes, rows, strict=True):
        colours, norm = (colormaps[theme.around_zero], around) if signed else (colormaps[theme.scale], scale)
        panels.show_weights(here, explanation.picture, explanation.places, values, colours, norm, theme)
        here.set_title(panels.wrapped(name, 40, 2), fontsize=10)
    shares = [here for here, (_, _, signed) in zip(axes, rows, strict=True) if not signed]
    _bar(part, ScalarMappable(scale, colormaps[theme.scale]), shares, "share")
    if around is not None:
        _bar(part, ScalarMappable(around, colormaps[theme.around_zero]), [axes[-1]], "part of the sum")


def _rows(weights: Tensor, explanation: Explanation, side: str) -> list[tuple[str, Tensor, bool]]:
    """What there is to show of each token: a name, values, and whether they may be negative."""
    how = (explanation.image if side == "image" else explanation.text).how
    rows = [(panels.HOW[how], weights, False)]
    found = explanation.winning
    if found is not None:
        supply, parts = (
            (found.image_supply, found.image_parts) if side == "image" else (found.text_supply, found.text_parts)
        )
        rows.append((_supplies(found), supply, False))
        # Of match probability the closeness is split, not what it makes of it.
        what = "score" if abs(float(parts.sum()) - explanation.score) < 1e-3 else "closeness"
        rows.append((f"adds to the {what}, sum {float(parts.sum()):.4f}", parts, True))
    return rows


def _supplies(found: Winning) -> str:
    many = len(found.dimensions)
    if found.names:
        return f"supplies {', '.join(found.names[:2])}" + (f" and {many - 2} more" if many > 2 else "")
    return f"supplies the {many} winning dimension{'s' if many > 1 else ''}"


def _norms(rows: list[tuple[str, Tensor, bool]]) -> tuple[Any, Any]:
    """One scale for all shares, and one around zero."""
    from matplotlib.colors import Normalize, TwoSlopeNorm

    shares = torch.cat([values for _, values, signed in rows if not signed])
    signed = [values.abs().max() for _, values, signed in rows if signed]
    around = TwoSlopeNorm(0, -max(float(signed[0]), 1e-9), max(float(signed[0]), 1e-9)) if signed else None
    return Normalize(0, max(float(shares.max()), 1e-9)), around


def _bar(part: Any, mappable: Any, axes: list[Any], label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    bar = part.colorbar(mappable, ax=axes, location="bottom", shrink=0.8, aspect=30, ticks=MaxNLocator(4))
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)


def _words(part: Any, explanation: Explanation, theme: Theme) -> None:
    from matplotlib import colormaps

    rows = [
        (name, word_weights(values, explanation.words), signed)
        for name, values, signed in _rows(explanation.text.weights[-1, 0], explanation, "text")
    ]
    scale, around = _norms(rows)
    every = part.subplots(len(rows), 1, squeeze=False, sharex=True)[:, 0]
    for here, (name, values, signed) in zip(every, rows, strict=True):
        colours, norm = (colormaps[theme.around_zero], around) if signed else (colormaps[theme.scale], scale)
        form = "{:.3f}" if signed else "{:.2f}"
        if len(explanation.words) > 24:
            form = ""
        panels.show_matrix(here, values[None], colours, norm, form)
        here.set_yticks([0], [panels.wrapped(name, 24, 2)], fontsize=9)
    panels.label_words(every[-1], explanation, theme)


def _nearest(part: Any, explanation: Explanation, theme: Theme) -> None:
    if not explanation.nearest or explanation.searched is None:
        return
    searched = explanation.searched
    part.text(0.01, 0.98, f"nearest of {searched.count:,} captions ({searched.name})", va="top", fontsize=10)
    step = 0.28 / (0.28 * len(explanation.nearest[0]) + 0.5)
    for place, near in enumerate(explanation.nearest[0]):
        matching = near.matches is True
        part.text(
            0.02,
            0.98 - step * (place + 1.1),
            f"{near.closeness:.3f}  {panels.wrapped(near.caption, 120, 1)}" + (" · matches" if matching else ""),
            va="top",
            fontsize=9.5,
            color=theme.matching if matching else theme.ink,
            fontweight="bold" if matching else "normal",
        )
