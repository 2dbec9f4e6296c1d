"""An `Explanation` as a picture, in the manner of the DivE supplement's figures A2 and A3."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from polysem.errors import unknown
from polysem.inspection.explain.explanation import Explanation, NearestCaption, sum_over_words
from polysem.inspection.explain.map_drawing import (
    THEMES,
    Theme,
    list_score_maps,
    make_scale,
    show_image,
    show_score_map,
    show_weights,
)
from polysem.inspection.output import PICTURES, check_output_path, replace_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150
# Families that complete each other: the first has no emoji and no Asian scripts.
_FONTS = ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans", "Noto Emoji", "Segoe UI", "Arial Unicode MS")
WEIGHT_TITLES = {
    "attention": "attention of each element",
    "pooling": "pooling weights",
    "omission": "how far the vector turns without it",
}


def draw(explanation: Explanation, out: str | Path, theme: str = "light") -> Path:
    """Write the drawing to `out`, a .png, .svg or .pdf file. theme: light or dark."""
    path = check_output_path("an explanation", out, PICTURES)
    figure = make_figure(explanation, theme)
    with _use_theme(THEMES[theme]), replace_output("the explanation", path) as temporary:
        figure.savefig(temporary, dpi=DPI)
    return path


def make_figure(explanation: Explanation, theme: str = "light") -> Figure:
    """The drawing as a matplotlib figure. Without a display and without pyplot's global state."""
    from matplotlib.figure import Figure

    check_theme(theme)
    figure = Figure(layout="constrained")
    with _use_theme(THEMES[theme]):
        single = explanation.image.weights.shape[:2] == explanation.text.weights.shape[:2] == (1, 1)
        (_lay_out_single if single else _lay_out_set)(figure, explanation, THEMES[theme])
    return figure


def check_theme(theme: str) -> None:
    """Raises for a theme that does not exist."""
    if theme not in THEMES:
        raise unknown("theme", theme, THEMES)


def _lay_out_set(figure: Any, explanation: Explanation, theme: Theme) -> None:
    """A row for each element of the image, a column for each iteration, and the score split over pairs."""
    steps, elements, _ = explanation.image.weights.shape
    cell = 1.75 if elements <= 6 else 1.25
    maps_width = cell * steps * _map_aspect(explanation) + (3.4 if explanation.nearest else 0.4) + 1.1
    left_width = 3.9
    width = max(left_width + maps_width, 10.0)
    heights = [
        max(cell * elements + 0.9, 5.6 + 2.3 * len(list_score_maps(explanation))),
        1.5 + 0.3 * explanation.text.weights.shape[1],
    ]
    top, bottom = _add_title(figure, explanation, theme, width, heights)
    left, right = top.subfigures(1, 2, width_ratios=[left_width, width - left_width])
    weights, common = explanation.image.weights, explanation.image.global_weights
    scale = make_scale(theme, max(float(x.max()) for x in (weights, common) if x is not None))  # of all maps
    _show_image_and_matrix(left, explanation, scale, theme)
    _show_element_maps(right, explanation, scale, theme)
    _show_element_words(bottom, explanation, theme)


def _show_image_and_matrix(part: Any, explanation: Explanation, scale: Any, theme: Theme) -> None:
    common, image = explanation.image.global_weights, explanation.picture
    rows = 1 + (image is not None) + (common is not None) + len(list_score_maps(explanation))
    *above, last = part.subplots(rows, 1, squeeze=False)[:, 0]
    if image is not None:
        first = above.pop(0)
        show_image(first, image)
        first.set_title(_wrap(explanation.image_name, 34, 1), fontsize=10)
    for found in list_score_maps(explanation):
        show_score_map(above.pop(0), explanation, found, theme)
    if common is not None:
        show_weights(above[0], explanation, common, scale, theme)
        above[0].set_title("global feature, in every element", fontsize=9)
    matrix = explanation.contributions.matrix
    _show_matrix(last, matrix, make_scale(theme, float(matrix.abs().max()), bool((matrix < 0).any())))
    last.set_title(f"contributions, sum {float(matrix.sum()):.4f}", fontsize=10)
    last.set_xticks(range(matrix.shape[1]), [f"c{i + 1}" for i in range(matrix.shape[1])], fontsize=9)
    last.set_yticks(range(matrix.shape[0]), [f"i{i + 1}" for i in range(matrix.shape[0])], fontsize=9)
    last.set(xlabel="element of the caption", ylabel="element of the image")


def _show_element_maps(part: Any, explanation: Explanation, scale: Any, theme: Theme) -> None:
    weights = explanation.image.weights
    steps, elements, _ = weights.shape
    ratios = [1.0] * steps + ([1.9 / _map_aspect(explanation)] if explanation.nearest else [])
    axes = part.subplots(elements, len(ratios), squeeze=False, width_ratios=ratios)
    for element in range(elements):
        for step in range(steps):
            cell = axes[element][step]
            show_weights(cell, explanation, weights[step, element], scale, theme)
            if element == 0:
                cell.set_title(f"t = {step + 1}" if steps > 1 else WEIGHT_TITLES[explanation.image.how], fontsize=10)
            if step == 0:
                cell.set_ylabel(f"i{element + 1}", fontsize=11, rotation=0, labelpad=12, va="center")
        if explanation.nearest:
            cell, near = axes[element][-1], explanation.nearest[element][0]
            matches, style = _caption_style(near, theme)
            text = _wrap(near.caption, 32, 5) + f"\n{near.closeness:.3f}{matches}"
            cell.set_axis_off()
            cell.text(0.02, 0.5, text, va="center", transform=cell.transAxes, **style)
    if explanation.nearest and explanation.searched is not None:
        count = _wrap(f"nearest of {explanation.searched.count:,} captions", 40, 1)
        name = _wrap(explanation.searched.name, 36, 1)
        axes[0][-1].set_title(f"{count}\n({name})", fontsize=9.5, loc="left")
    bar = part.colorbar(scale, ax=axes[:, :steps].ravel().tolist(), location="bottom", shrink=0.7, aspect=45)
    bar.set_label("share of the local feature in what is taken in", fontsize=9)
    bar.ax.tick_params(labelsize=8)


def _show_element_words(part: Any, explanation: Explanation, theme: Theme) -> None:
    weights = explanation.word_weights[-1]
    axes = part.subplots()
    scale = make_scale(theme, float(weights.max()))
    if len(explanation.words) <= 24:
        _show_matrix(axes, weights, scale, "{:.2f}")
    else:
        axes.imshow(weights.numpy(), cmap=scale.cmap, norm=scale.norm, aspect="auto")
    _label_words(axes, explanation, theme)
    axes.set_yticks(range(len(weights)), [f"c{i + 1}" for i in range(len(weights))], fontsize=9)
    last = ", last iteration" if len(explanation.text.weights) > 1 else ""
    axes.set_title(f"words: {WEIGHT_TITLES[explanation.text.how]}{last}", fontsize=10)
    part.colorbar(scale, ax=axes, fraction=0.02, pad=0.01).ax.tick_params(labelsize=8)


_TokenRow = tuple[str, Tensor, bool]
"""What is shown of each token: a title, values, and whether they may be negative."""


def _lay_out_single(figure: Any, explanation: Explanation, theme: Theme) -> None:
    """Pooling weights, tokens that supply the winning dimensions, and what each token adds to the score."""
    rows = len(_token_rows(explanation, "text"))
    maps = len(_token_rows(explanation, "image")) + (explanation.picture is not None)
    maps += len(list_score_maps(explanation))
    width = max(2.6 * _map_aspect(explanation) * maps + 1.0, 9.5)
    captions_height = 0.28 * len(explanation.nearest[0]) + 0.5 if explanation.nearest else 0.05
    top, middle, bottom = _add_title(figure, explanation, theme, width, [3.6, 0.55 * rows + 1.3, captions_height])
    _show_token_maps(top, explanation, theme, maps)
    _show_token_words(middle, explanation, theme)
    if explanation.nearest and explanation.searched is not None:
        searched = explanation.searched
        bottom.text(0.01, 0.98, f"nearest of {searched.count:,} captions ({searched.name})", va="top", fontsize=10)
        for line, near in enumerate(explanation.nearest[0]):
            matches, style = _caption_style(near, theme)
            text = f"{near.closeness:.3f}  {_wrap(near.caption, 120, 1)}{matches}"
            bottom.text(0.02, 0.98 - 0.28 / captions_height * (line + 1.1), text, va="top", **style)


def _show_token_maps(part: Any, explanation: Explanation, theme: Theme, maps: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes = list(part.subplots(1, maps, squeeze=False)[0])
    if explanation.picture is not None:
        first = axes.pop(0)
        show_image(first, explanation.picture)
        first.set_title(_wrap(explanation.image_name, 30, 1), fontsize=10)
    for found in list_score_maps(explanation):
        show_score_map(axes.pop(0), explanation, found, theme)
    rows = _token_rows(explanation, "image")
    scales = _token_scales(rows, theme)
    for cell, (title, values, signed) in zip(axes, rows, strict=True):
        show_weights(cell, explanation, values, scales[signed], theme)
        cell.set_title(_wrap(title, 40, 2), fontsize=10)
    for signed, scale in scales.items():
        shown = [cell for cell, row in zip(axes, rows, strict=True) if row[2] == signed]
        bar = part.colorbar(scale, ax=shown, location="bottom", shrink=0.8, aspect=30, ticks=MaxNLocator(4))
        of_signed = "part of the sum" if explanation.winning is not None else "fall of the score"
        bar.set_label(of_signed if signed else "share", fontsize=9)
        bar.ax.tick_params(labelsize=8)


def _show_token_words(part: Any, explanation: Explanation, theme: Theme) -> None:
    words = explanation.words
    rows = [(title, sum_over_words(x, words), signed) for title, x, signed in _token_rows(explanation, "text")]
    scales = _token_scales(rows, theme)
    axes = part.subplots(len(rows), 1, squeeze=False, sharex=True)[:, 0]
    for cell, (title, values, signed) in zip(axes, rows, strict=True):
        form = "" if len(words) > 24 else "{:.3f}" if signed else "{:.2f}"
        _show_matrix(cell, values[None], scales[signed], form)
        cell.set_yticks([0], [_wrap(title, 24, 2)], fontsize=9)
    _label_words(axes[-1], explanation, theme)


def _token_rows(explanation: Explanation, side: str) -> list[_TokenRow]:
    attention = explanation.image if side == "image" else explanation.text
    rows = [(WEIGHT_TITLES[attention.how], attention.weights[-1, 0], False)]
    drops = explanation.image_drops if side == "image" else explanation.text_drops
    if drops is not None:
        side_length = attention.hidden_together
        blocks = f" ({side_length} × {side_length} patches hidden at a time)" if side_length > 1 else ""
        rows.append((f"how far the score falls without it{blocks}", drops, True))
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
    scales = {False: make_scale(theme, float(shares.max()))}
    scales.update((True, make_scale(theme, float(x.abs().max()), True)) for _, x, signed in rows if signed)
    return scales


@contextmanager
def _use_theme(theme: Theme) -> Iterator[None]:
    """Drawings made and saved in here have this theme."""
    import matplotlib
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    settings: dict[Any, Any] = {
        **dict.fromkeys(("figure.facecolor", "savefig.facecolor", "axes.facecolor"), theme.paper),
        **dict.fromkeys(("axes.labelcolor", "axes.titlecolor", "text.color", "xtick.color", "ytick.color"), theme.ink),
        "axes.edgecolor": theme.faint,
        "font.family": [name for name in _FONTS if name in installed] or ["sans-serif"],
        "text.parse_math": False,  # a dollar in a caption is a dollar
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # A caption in a script that no installed font knows is still worth drawing.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _add_title(figure: Any, explanation: Explanation, theme: Theme, width: float, heights: list[float]) -> Any:
    """The caption, and under it the score; the parts of the figure below, of these heights in inches."""
    caption = _wrap(explanation.caption, 95, 2)
    match = "" if explanation.match is None else f" · match {100 * explanation.match:.2g} %"
    score = f"{explanation.similarity} score {explanation.score:.4f}{match} · {explanation.model}"
    if explanation.labels:
        score = f"{score}\n{_wrap(explanation.label_line, 110, 1)}"
    height = 0.5 + 0.25 * len(caption.splitlines()) + (0.25 if explanation.labels else 0)
    figure.set_size_inches(width, height + sum(heights))
    title, *parts = figure.subfigures(1 + len(heights), 1, height_ratios=[height, *heights])
    title.text(0.01, 1 - 0.1 / height, caption, va="top", fontsize=13)
    title.text(0.01, 0.12 / height, score, va="bottom", fontsize=10.5, color=theme.faint)
    return parts


def _map_aspect(explanation: Explanation) -> float:
    """Width over height of a map, within reason."""
    width, height = explanation.places.size
    return min(2.2, max(0.8, width / height)) if height and explanation.picture is not None else 1.3


def _caption_style(near: NearestCaption, theme: Theme) -> tuple[str, dict[str, Any]]:
    """What to add to a caption that matches, and how to print it."""
    note, colour, weight = (" · matches", theme.matching, "bold") if near.matches else ("", theme.ink, "normal")
    return note, {"color": colour, "fontweight": weight, "fontsize": 9.5}


def _show_matrix(axes: Any, values: Tensor, scale: Any, form: str = "{:.3f}") -> None:
    """(rows, columns) with its numbers, dark on light cells and light on dark ones."""
    axes.imshow(values.numpy(), cmap=scale.cmap, norm=scale.norm, aspect="auto")
    for row, column in np.ndindex(*values.shape):
        value = round(float(values[row, column]), 4) + 0.0  # no minus before a zero
        red, green, blue, _ = scale.cmap(scale.norm(value))
        colour = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"
        axes.text(column, row, form.format(value), ha="center", va="center", fontsize=8, color=colour)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _label_words(axes: Any, explanation: Explanation, theme: Theme) -> None:
    """The words under the columns; special tokens faint, words the model does not know in brackets."""
    names = [_shorten(word.text, 18) if word.known else f"({_shorten(word.text, 16)})" for word in explanation.words]
    # Side by side as long as they fit, then aslant, then upright.
    turn = 0 if sum(len(name) + 2 for name in names) <= 90 else 35 if len(names) <= 36 else 90
    size = 7.5 if turn == 90 else 9
    axes.set_xticks(range(len(names)), names, fontsize=size, rotation=turn, ha="right" if turn == 35 else "center")
    for label, word in zip(axes.get_xticklabels(), explanation.words, strict=True):
        label.set_color(theme.faint if word.special or not word.known else theme.ink)


def _wrap(text: str, width: int, lines: int) -> str:
    """The text in at most so many lines; what is left out shows as an ellipsis."""
    return "\n".join(textwrap.wrap(text, width, max_lines=lines, placeholder=" …") or [_shorten(text, width)])


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
