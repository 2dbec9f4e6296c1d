"""The pieces of a drawing: weights over a picture, a matrix with its numbers, words in a row."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from polysem.inspection.explain.explanation import Explanation
from polysem.inspection.explain.theme import Theme
from polysem.inspection.token_boxes import Places

VEIL = 0.62
"""How far the colours of a map cover the grey picture under them."""
MOST_PIXELS = 480
HOW = {
    "attention": "attention of each element",
    "pooling": "pooling weights",
    "omission": "how far the vector turns without it",
}
HOW_WORDS = {
    "attention": "attention of each element of the caption",
    "pooling": "pooling weights of the caption",
    "omission": "how far the caption's vector turns without the word",
}


def title_height(explanation: Explanation) -> float:
    """Inches that `show_title` needs."""
    return 0.5 + 0.25 * len(_title(explanation).splitlines()) + (0.25 if explanation.labels else 0)


def show_title(part: Any, explanation: Explanation, theme: Theme) -> None:
    """The caption, and under it the score."""
    height = title_height(explanation)
    score = f"{explanation.similarity} score {explanation.score:.4f} · {explanation.model}"
    part.text(0.01, 1 - 0.1 / height, _title(explanation), va="top", fontsize=13)
    if explanation.labels:
        score = f"{score}\n{wrapped(told_labels(explanation), 110, 1)}"
    part.text(0.01, 0.12 / height, score, va="bottom", fontsize=10.5, color=theme.faint)


def told_labels(explanation: Explanation) -> str:
    """The labels of both sides in a line."""
    told = {
        side: ", ".join(f"{each.label} {each.probability:.2f}" for each in said)
        for side, said in explanation.labels.items()
    }
    return f"labels of the image: {told['image']} · of the caption: {told['text']}"


def _title(explanation: Explanation) -> str:
    return wrapped(explanation.caption, 95, 2)


def aspect(explanation: Explanation) -> float:
    """Width over height of a map, within reason."""
    width, height = explanation.places.size
    return min(2.2, max(0.8, width / height)) if height and explanation.picture is not None else 1.3


def show_picture(axes: Any, picture: Image.Image | None, grey: bool = False) -> None:
    """The picture without axes, in its own coordinates."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    if picture is None:
        return
    width, height = picture.size
    small = picture.copy()
    small.thumbnail((MOST_PIXELS, MOST_PIXELS))
    shown = np.asarray(small.convert("L") if grey else small)
    axes.imshow(shown, extent=(0, width, height, 0), cmap="gray" if grey else None, vmin=0, vmax=255)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)


def show_weights(
    axes: Any, picture: Image.Image | None, places: Places, weights: Tensor, colours: Any, norm: Any, theme: Theme
) -> None:
    """(N,) weights where the tokens lie: cells as a heat map, regions as boxes, the rest as bars in their order."""
    if places.kind in ("frames", "unknown") or picture is None:
        _bars(axes, places, weights, colours, norm, theme)
        return
    show_picture(axes, picture, grey=True)
    if places.kind == "cells":
        left, top, right, bottom = places.window
        axes.imshow(
            places.as_map(weights).numpy(),
            extent=(left, right, bottom, top),
            cmap=colours,
            norm=norm,
            alpha=VEIL,
            interpolation="nearest",
        )
        width, height = places.size
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
    else:
        _boxes(axes, places, weights, colours, norm)
    lost = weights[~places.located]
    if len(lost):
        axes.set_xlabel(f"class token {float(lost.sum()):.0%}", fontsize=8, color=theme.faint)


def _boxes(axes: Any, places: Places, weights: Tensor, colours: Any, norm: Any) -> None:
    """The weightiest last, so that nothing covers it."""
    from matplotlib.patches import Rectangle

    for place in weights.argsort().tolist():
        if not places.located[place]:
            continue
        x0, y0, x1, y1 = places.boxes[place].tolist()
        height = float(norm(float(weights[place])))
        edge = colours(height)
        axes.add_patch(
            Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=edge, linewidth=0.6 + 2.4 * height, alpha=0.95)
        )


def _bars(axes: Any, places: Places, weights: Tensor, colours: Any, norm: Any, theme: Theme) -> None:
    at = np.array(places.times) if places.times else np.arange(1.0, len(weights) + 1)
    width = 0.9 * (2 * at[0] if places.times else 1.0)  # the first frame is taken half an interval from the beginning
    axes.bar(at, weights.numpy(), color=colours(norm(weights.numpy())), width=width)
    low = min(0.0, float(norm.vmin))
    axes.set_ylim(low, float(norm.vmax) * 1.05)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    unit = "seconds" if places.times else "frame" if places.kind == "frames" else "token"
    axes.set_xlabel(unit, fontsize=8, color=theme.faint)


def show_matrix(axes: Any, values: Tensor, colours: Any, norm: Any, form: str = "{:.3f}") -> None:
    """(rows, columns) with its numbers, dark on light cells and light on dark ones."""
    axes.imshow(values.numpy(), cmap=colours, norm=norm, aspect="auto")
    for row, column in np.ndindex(*values.shape):
        value = round(float(values[row, column]), 4) + 0.0  # no minus before a zero
        red, green, blue, _ = colours(norm(value))
        light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.55
        axes.text(
            column, row, form.format(value), ha="center", va="center", fontsize=8, color="black" if light else "white"
        )
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)


def label_words(axes: Any, explanation: Explanation, theme: Theme) -> None:
    """The words under the columns; special tokens faint, words the model does not know in brackets."""
    names = [_short(word.text, 18) if word.known else f"({_short(word.text, 16)})" for word in explanation.words]
    # Side by side as long as they fit, then aslant, then upright.
    room = sum(len(name) + 2 for name in names)
    turn = 0 if room <= 90 else 35 if len(names) <= 36 else 90
    size = 7.5 if turn == 90 else 9
    axes.set_xticks(range(len(names)), names, fontsize=size, rotation=turn, ha="right" if turn == 35 else "center")
    for label, word in zip(axes.get_xticklabels(), explanation.words, strict=True):
        label.set_color(theme.faint if word.special or not word.known else theme.ink)


def wrapped(text: str, width: int, lines: int) -> str:
    """The text in at most so many lines; what is left out shows as an ellipsis."""
    return "\n".join(textwrap.wrap(text, width, max_lines=lines, placeholder=" …") or [_short(text, width)])


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
