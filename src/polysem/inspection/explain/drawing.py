"""An `Explanation` as a picture, in the manner of the DivE supplement's figures A2 and A3."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polysem.errors import unknown
from polysem.inspection.explain import panels
from polysem.inspection.explain.explanation import Explanation, sum_over_words
from polysem.inspection.explain.panels import THEMES, Theme
from polysem.inspection.output import PICTURES, check_output_path, replace_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150


def draw(explanation: Explanation, out: str | Path, theme: str = "light") -> Path:
    """Write the drawing to `out`, a .png, .svg or .pdf file. theme: light or dark."""
    path = check_output_path("an explanation", out, PICTURES)
    figure = make_figure(explanation, theme)
    with panels.use_theme(THEMES[theme]), replace_output("the explanation", path) as temporary:
        figure.savefig(temporary, dpi=DPI)
    return path


def make_figure(explanation: Explanation, theme: str = "light") -> Figure:
    """The drawing as a matplotlib figure. Without a display and without pyplot's global state."""
    from matplotlib.figure import Figure

    check_theme(theme)
    with panels.use_theme(THEMES[theme]):
        single = explanation.image.weights.shape[:2] == explanation.text.weights.shape[:2] == (1, 1)
        figure = Figure(layout="constrained")
        (_lay_out_single if single else _lay_out_set)(figure, explanation, THEMES[theme])
    return figure


def check_theme(theme: str) -> None:
    """Raises for a theme that does not exist."""
    if theme not in THEMES:
        raise unknown("theme", theme, THEMES)


# -------------------------------------------------------------------------------------------------------------- sets


def _lay_out_set(figure: Any, explanation: Explanation, theme: Theme) -> None:
    """A row for each element of the image, a column for each iteration, and the score split over pairs."""
    steps, elements, _ = explanation.image.weights.shape
    cell = 1.75 if elements <= 6 else 1.25
    maps_width = cell * steps * panels.map_aspect(explanation) + (3.4 if explanation.nearest else 0.4) + 1.1
    left_width = 3.9
    width = max(left_width + maps_width, 10.0)
    bottom_height = 1.5 + 0.3 * explanation.text.weights.shape[1]
    heights = [panels.title_height(explanation), max(cell * elements + 0.9, 5.6), bottom_height]
    figure.set_size_inches(width, sum(heights))
    title, top, bottom = figure.subfigures(3, 1, height_ratios=heights)
    panels.show_title(title, explanation, theme)
    left, right = top.subfigures(1, 2, width_ratios=[left_width, width - left_width])
    weights, common = explanation.image.weights, explanation.image.common
    scale = panels.make_scale(theme, max(float(x.max()) for x in (weights, common) if x is not None))  # of all maps
    _show_image_and_matrix(left, explanation, scale, theme)
    _show_element_maps(right, explanation, scale, theme)
    _show_element_words(bottom, explanation, theme)


def _show_image_and_matrix(part: Any, explanation: Explanation, scale: Any, theme: Theme) -> None:
    common, image = explanation.image.common, explanation.picture
    rows = 1 + (image is not None) + (common is not None)
    *above, last = part.subplots(rows, 1, squeeze=False)[:, 0]
    if image is not None:
        first = above.pop(0)
        panels.show_image(first, image)
        first.set_title(panels.wrap(explanation.image_name, 34, 1), fontsize=10)
    if common is not None:
        panels.show_weights(above[0], explanation, common, scale, theme)
        above[0].set_title("global feature, in every element", fontsize=9)
    matrix = explanation.contributions.matrix
    panels.show_matrix(last, matrix, panels.make_scale(theme, float(matrix.abs().max()), bool((matrix < 0).any())))
    last.set_title(f"contributions, sum {float(matrix.sum()):.4f}", fontsize=10)
    last.set_xticks(range(matrix.shape[1]), [f"c{i + 1}" for i in range(matrix.shape[1])], fontsize=9)
    last.set_yticks(range(matrix.shape[0]), [f"i{i + 1}" for i in range(matrix.shape[0])], fontsize=9)
    last.set_xlabel("element of the caption", fontsize=9)
    last.set_ylabel("element of the image", fontsize=9)


def _show_element_maps(part: Any, explanation: Explanation, scale: Any, theme: Theme) -> None:
    weights = explanation.image.weights
    steps, elements, _ = weights.shape
    ratios = [1.0] * steps + ([1.9 / panels.map_aspect(explanation)] if explanation.nearest else [])
    axes = part.subplots(elements, len(ratios), squeeze=False, width_ratios=ratios)
    for element in range(elements):
        for step in range(steps):
            cell = axes[element][step]
            panels.show_weights(cell, explanation, weights[step, element], scale, theme)
            if element == 0:
                title = f"t = {step + 1}" if steps > 1 else panels.WEIGHT_TITLES[explanation.image.how]
                cell.set_title(title, fontsize=10)
            if step == 0:
                cell.set_ylabel(f"i{element + 1}", fontsize=11, rotation=0, labelpad=12, va="center")
        if explanation.nearest:
            cell, near = axes[element][-1], explanation.nearest[element][0]
            matches, style = panels.caption_style(near, theme)
            text = panels.wrap(near.caption, 32, 5) + f"\n{near.closeness:.3f}{matches}"
            cell.set_axis_off()
            cell.text(0.02, 0.5, text, va="center", transform=cell.transAxes, **style)
    if explanation.nearest and explanation.searched is not None:
        count = panels.wrap(f"nearest of {explanation.searched.count:,} captions", 40, 1)
        name = panels.wrap(explanation.searched.name, 36, 1)
        axes[0][-1].set_title(f"{count}\n({name})", fontsize=9.5, loc="left")
    bar = part.colorbar(scale, ax=axes[:, :steps].ravel().tolist(), location="bottom", shrink=0.7, aspect=45)
    bar.set_label("share of the local feature in what is taken in", fontsize=9)
    bar.ax.tick_params(labelsize=8)


def _show_element_words(part: Any, explanation: Explanation, theme: Theme) -> None:
    weights = explanation.word_weights[-1]
    axes = part.subplots()
    scale = panels.make_scale(theme, float(weights.max()))
    if len(explanation.words) <= 24:
        panels.show_matrix(axes, weights, scale, "{:.2f}")
    else:
        axes.imshow(weights.numpy(), cmap=scale.cmap, norm=scale.norm, aspect="auto")
    panels.label_words(axes, explanation, theme)
    axes.set_yticks(range(len(weights)), [f"c{i + 1}" for i in range(len(weights))], fontsize=9)
    last = ", last iteration" if len(explanation.text.weights) > 1 else ""
    axes.set_title(f"words: {panels.WORD_TITLES[explanation.text.how]}{last}", fontsize=10)
    part.colorbar(scale, ax=axes, fraction=0.02, pad=0.01).ax.tick_params(labelsize=8)


# ---------------------------------------------------------------------------------------------------- single vectors

_TokenRow = tuple[str, Tensor, bool]
"""What is shown of each token: a title, values, and whether they may be negative."""


def _lay_out_single(figure: Any, explanation: Explanation, theme: Theme) -> None:
    """Pooling weights, tokens that supply the winning dimensions, and what each token adds to the score."""
    rows = 1 if explanation.winning is None else 3
    maps = rows + (explanation.picture is not None)
    width = max(2.6 * panels.map_aspect(explanation) * maps + 1.0, 9.5)
    captions_height = 0.28 * len(explanation.nearest[0]) + 0.5 if explanation.nearest else 0.05
    heights = [panels.title_height(explanation), 3.6, 0.55 * rows + 1.3, captions_height]
    figure.set_size_inches(width, sum(heights))
    title, top, middle, bottom = figure.subfigures(4, 1, height_ratios=heights)
    panels.show_title(title, explanation, theme)
    _show_token_maps(top, explanation, theme, maps)
    _show_token_words(middle, explanation, theme)
    if explanation.nearest and explanation.searched is not None:
        searched = explanation.searched
        bottom.text(0.01, 0.98, f"nearest of {searched.count:,} captions ({searched.name})", va="top", fontsize=10)
        for line, near in enumerate(explanation.nearest[0]):
            matches, style = panels.caption_style(near, theme)
            text = f"{near.closeness:.3f}  {panels.wrap(near.caption, 120, 1)}{matches}"
            bottom.text(0.02, 0.98 - 0.28 / captions_height * (line + 1.1), text, va="top", **style)


def _show_token_maps(part: Any, explanation: Explanation, theme: Theme, maps: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes = list(part.subplots(1, maps, squeeze=False)[0])
    if explanation.picture is not None:
        first = axes.pop(0)
        panels.show_image(first, explanation.picture)
        first.set_title(panels.wrap(explanation.image_name, 30, 1), fontsize=10)
    rows = _token_rows(explanation, "image")
    scales = _token_scales(rows, theme)
    for cell, (title, values, signed) in zip(axes, rows, strict=True):
        panels.show_weights(cell, explanation, values, scales[signed], theme)
        cell.set_title(panels.wrap(title, 40, 2), fontsize=10)
    for signed, scale in scales.items():
        shown = [cell for cell, row in zip(axes, rows, strict=True) if row[2] == signed]
        bar = part.colorbar(scale, ax=shown, location="bottom", shrink=0.8, aspect=30, ticks=MaxNLocator(4))
        bar.set_label("part of the sum" if signed else "share", fontsize=9)
        bar.ax.tick_params(labelsize=8)


def _show_token_words(part: Any, explanation: Explanation, theme: Theme) -> None:
    rows = [
        (title, sum_over_words(values, explanation.words), signed)
        for title, values, signed in _token_rows(explanation, "text")
    ]
    scales = _token_scales(rows, theme)
    axes = part.subplots(len(rows), 1, squeeze=False, sharex=True)[:, 0]
    for cell, (title, values, signed) in zip(axes, rows, strict=True):
        form = "" if len(explanation.words) > 24 else "{:.3f}" if signed else "{:.2f}"
        panels.show_matrix(cell, values[None], scales[signed], form)
        cell.set_yticks([0], [panels.wrap(title, 24, 2)], fontsize=9)
    panels.label_words(axes[-1], explanation, theme)


def _token_rows(explanation: Explanation, side: str) -> list[_TokenRow]:
    attention = explanation.image if side == "image" else explanation.text
    rows = [(panels.WEIGHT_TITLES[attention.how], attention.weights[-1, 0], False)]
    winning = explanation.winning
    if winning is not None:
        many = len(winning.dimensions)
        title = f"supplies the {many} winning dimension{'s' if many > 1 else ''}"
        if winning.names:
            title = f"supplies {', '.join(winning.names[:2])}" + (f" and {many - 2} more" if many > 2 else "")
        supply, parts = (getattr(winning, f"{side}_{name}") for name in ("supply", "parts"))
        # Of match probability the closeness is split, not what it makes of it.
        what = "score" if abs(float(parts.sum()) - explanation.score) < 1e-3 else "closeness"
        rows += [(title, supply, False), (f"adds to the {what}, sum {float(parts.sum()):.4f}", parts, True)]
    return rows


def _token_scales(rows: list[_TokenRow], theme: Theme) -> dict[bool, Any]:
    """One scale for all shares (False), and one around zero (True) where there are signed values."""
    shares = torch.cat([values for _, values, signed in rows if not signed])
    scales = {False: panels.make_scale(theme, float(shares.max()))}
    scales.update((True, panels.make_scale(theme, float(x.abs().max()), True)) for _, x, signed in rows if signed)
    return scales
