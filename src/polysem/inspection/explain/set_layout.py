"""The drawing for sets: a row for each element of the image, a column for each iteration, and the score taken apart."""

from __future__ import annotations

from typing import Any

import torch

from polysem.inspection.explain import panels
from polysem.inspection.explain.explanation import Explanation
from polysem.inspection.explain.theme import Theme


def lay_out_set(figure: Any, explanation: Explanation, theme: Theme) -> None:
    steps, elements, _ = explanation.image.weights.shape
    with_captions = bool(explanation.nearest)
    cell = 1.75 if elements <= 6 else 1.25
    maps_width = cell * steps * panels.aspect(explanation) + (3.4 if with_captions else 0.4) + 1.1
    left_width = 3.9
    top_height = max(cell * elements + 0.9, 5.6)
    text_elements, words = explanation.text.weights.shape[1], len(explanation.words)
    bottom_height = 1.5 + 0.3 * text_elements
    width = max(left_width + maps_width, 10.0)
    heights = [panels.title_height(explanation), top_height, bottom_height]
    figure.set_size_inches(width, sum(heights))
    title, top, bottom = figure.subfigures(3, 1, height_ratios=heights)
    panels.show_title(title, explanation, theme)
    left, right = top.subfigures(1, 2, width_ratios=[left_width, width - left_width])
    _picture_and_matrix(left, explanation, theme)
    _maps(right, explanation, theme, with_captions)
    _words(bottom, explanation, theme, words)


def _picture_and_matrix(part: Any, explanation: Explanation, theme: Theme) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import Normalize, TwoSlopeNorm

    common, picture = explanation.image.common, explanation.picture
    rows = 1 + (picture is not None) + (common is not None)
    *above, last = part.subplots(rows, 1, squeeze=False)[:, 0]
    if picture is not None:
        first = above.pop(0)
        panels.show_picture(first, picture)
        first.set_title(panels.wrapped(explanation.image_name, 34, 1), fontsize=10)
    if common is not None:
        scale = Normalize(0, _top(explanation))
        panels.show_weights(above[0], picture, explanation.places, common, colormaps[theme.scale], scale, theme)
        above[0].set_title("global feature, in every element", fontsize=9)
    matrix = explanation.contributions.matrix
    most = max(float(matrix.abs().max()), 1e-9)
    against = bool((matrix < 0).any())
    norm = TwoSlopeNorm(0, -most, most) if against else Normalize(0, most)
    panels.show_matrix(last, matrix, colormaps[theme.around_zero if against else theme.scale], norm)
    last.set_title(f"contributions, sum {float(matrix.sum()):.4f}", fontsize=10)
    last.set_xticks(range(matrix.shape[1]), [f"c{place + 1}" for place in range(matrix.shape[1])], fontsize=9)
    last.set_yticks(range(matrix.shape[0]), [f"i{place + 1}" for place in range(matrix.shape[0])], fontsize=9)
    last.set_xlabel("element of the caption", fontsize=9)
    last.set_ylabel("element of the image", fontsize=9)


def _top(explanation: Explanation) -> float:
    """The end of the scale that all maps share."""
    shown = [explanation.image.weights.flatten()]
    if explanation.image.common is not None:
        shown.append(explanation.image.common)
    return max(float(torch.cat(shown).max()), 1e-9)


def _maps(part: Any, explanation: Explanation, theme: Theme, with_captions: bool) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    weights = explanation.image.weights
    steps, elements, _ = weights.shape
    colours, norm = colormaps[theme.scale], Normalize(0, _top(explanation))
    ratios = [1.0] * steps + ([1.9 / panels.aspect(explanation)] if with_captions else [])
    axes = part.subplots(elements, len(ratios), squeeze=False, width_ratios=ratios)
    for element in range(elements):
        for step in range(steps):
            here = axes[element][step]
            panels.show_weights(
                here, explanation.picture, explanation.places, weights[step, element], colours, norm, theme
            )
            if element == 0:
                here.set_title(f"t = {step + 1}" if steps > 1 else panels.HOW[explanation.image.how], fontsize=10)
            if step == 0:
                here.set_ylabel(f"i{element + 1}", fontsize=11, rotation=0, labelpad=12, va="center")
        if with_captions:
            _nearest(axes[element][-1], explanation, element, theme)
    if with_captions and explanation.searched is not None:
        named = panels.wrapped(f"nearest of {explanation.searched.count:,} captions", 40, 1)
        name = panels.wrapped(explanation.searched.name, 36, 1)
        axes[0][-1].set_title(f"{named}\n({name})", fontsize=9.5, loc="left")
    bar = part.colorbar(
        ScalarMappable(norm, colours), ax=axes[:, :steps].ravel().tolist(), location="bottom", shrink=0.7, aspect=45
    )
    bar.set_label("share of the local feature in what is taken in", fontsize=9)
    bar.ax.tick_params(labelsize=8)


def _nearest(axes: Any, explanation: Explanation, element: int, theme: Theme) -> None:
    axes.set_axis_off()
    near = explanation.nearest[element][0]
    matching = near.matches is True
    axes.text(
        0.02,
        0.5,
        panels.wrapped(near.caption, 32, 5) + f"\n{near.closeness:.3f}" + (" · matches" if matching else ""),
        va="center",
        fontsize=9.5,
        color=theme.matching if matching else theme.ink,
        fontweight="bold" if matching else "normal",
        transform=axes.transAxes,
    )


def _words(part: Any, explanation: Explanation, theme: Theme, words: int) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    weights = explanation.word_weights[-1]
    axes = part.subplots()
    norm, colours = Normalize(0, max(float(weights.max()), 1e-9)), colormaps[theme.scale]
    if words <= 24:
        panels.show_matrix(axes, weights, colours, norm, "{:.2f}")
    else:
        axes.imshow(weights.numpy(), cmap=colours, norm=norm, aspect="auto")
    panels.label_words(axes, explanation, theme)
    axes.set_yticks(range(len(weights)), [f"c{place + 1}" for place in range(len(weights))], fontsize=9)
    last = ", last iteration" if len(explanation.text.weights) > 1 else ""
    axes.set_title(f"words: {panels.HOW_WORDS[explanation.text.how]}{last}", fontsize=10)
    bar = part.colorbar(ScalarMappable(norm, colours), ax=axes, fraction=0.02, pad=0.01)
    bar.ax.tick_params(labelsize=8)
