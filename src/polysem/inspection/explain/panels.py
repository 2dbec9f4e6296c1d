"""The pieces of a drawing: its theme, weights over an image, a matrix with its numbers, words in a row."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from polysem.inspection.explain.explanation import Explanation, NearestCaption
from polysem.inspection.token_boxes import TokenBoxes

MAP_ALPHA = 0.62
"""How far the colours of a map cover the grey image under them."""
_MOST_PIXELS = 480
# Families that complete each other: the first has no emoji and no Asian scripts.
_FONTS = ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans", "Noto Emoji", "Segoe UI", "Arial Unicode MS")
WEIGHT_TITLES = {
    "attention": "attention of each element",
    "pooling": "pooling weights",
    "omission": "how far the vector turns without it",
}
WORD_TITLES = {
    "attention": "attention of each element of the caption",
    "pooling": "pooling weights of the caption",
    "omission": "how far the caption's vector turns without the word",
}


@dataclass(frozen=True)
class Theme:
    """The colours of a drawing, all readable without telling red from green.

    paper, ink: background and text. faint: text of less weight. matching: captions of the image itself.
    scale: colour map of shares, from 0 up. around_zero: of parts that may be negative.
    """

    paper: str
    ink: str
    faint: str
    matching: str
    scale: str = "viridis"
    around_zero: str = "PuOr"


THEMES: dict[str, Theme] = {
    "light": Theme("#ffffff", "#1b1f24", "#5f6b76", "#0b6e4f"),
    "dark": Theme("#14171c", "#eceff3", "#a3adb8", "#5fd3a6"),
}


@contextmanager
def use_theme(theme: Theme) -> Iterator[None]:
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


def make_scale(theme: Theme, most: float, signed: bool = False) -> Any:
    """The colours of values from 0 (`signed`: from -most) to `most`, as a matplotlib `ScalarMappable`."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize, TwoSlopeNorm

    most = max(most, 1e-9)
    if signed:
        return ScalarMappable(TwoSlopeNorm(0, -most, most), theme.around_zero)
    return ScalarMappable(Normalize(0, most), theme.scale)


def title_height(explanation: Explanation) -> float:
    """Inches that `show_title` needs."""
    lines = wrap(explanation.caption, 95, 2).splitlines()
    return 0.5 + 0.25 * len(lines) + (0.25 if explanation.labels else 0)


def show_title(part: Any, explanation: Explanation, theme: Theme) -> None:
    """The caption, and under it the score."""
    height = title_height(explanation)
    score = f"{explanation.similarity} score {explanation.score:.4f} · {explanation.model}"
    part.text(0.01, 1 - 0.1 / height, wrap(explanation.caption, 95, 2), va="top", fontsize=13)
    if explanation.labels:
        score = f"{score}\n{wrap(explanation.label_line, 110, 1)}"
    part.text(0.01, 0.12 / height, score, va="bottom", fontsize=10.5, color=theme.faint)


def map_aspect(explanation: Explanation) -> float:
    """Width over height of a map, within reason."""
    width, height = explanation.places.size
    return min(2.2, max(0.8, width / height)) if height and explanation.picture is not None else 1.3


def caption_style(near: NearestCaption, theme: Theme) -> tuple[str, dict[str, Any]]:
    """What to add to a caption that matches, and how to print it."""
    if near.matches:
        return " · matches", {"color": theme.matching, "fontweight": "bold", "fontsize": 9.5}
    return "", {"color": theme.ink, "fontweight": "normal", "fontsize": 9.5}


def show_image(axes: Any, image: Image.Image | None, grey: bool = False) -> None:
    """The image without axes, in its own coordinates."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    if image is None:
        return
    width, height = image.size
    small = image.copy()
    small.thumbnail((_MOST_PIXELS, _MOST_PIXELS))
    pixels = np.asarray(small.convert("L") if grey else small)
    axes.imshow(pixels, extent=(0, width, height, 0), cmap="gray" if grey else None, vmin=0, vmax=255)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)


def show_weights(axes: Any, explanation: Explanation, weights: Tensor, scale: Any, theme: Theme) -> None:
    """(N,) weights on the tokens' boxes: cells as a heat map, regions as boxes, the rest as bars in their order."""
    image, tokens = explanation.picture, explanation.places
    if tokens.kind in ("frames", "unknown") or image is None:
        _show_bars(axes, tokens, weights, scale, theme)
        return
    show_image(axes, image, grey=True)
    if tokens.kind == "cells":
        left, top, right, bottom = tokens.window
        colours = {"cmap": scale.cmap, "norm": scale.norm, "alpha": MAP_ALPHA, "interpolation": "nearest"}
        axes.imshow(tokens.as_map(weights).numpy(), extent=(left, right, bottom, top), **colours)
        axes.set_xlim(0, tokens.size[0])
        axes.set_ylim(tokens.size[1], 0)
    else:
        from matplotlib.patches import Rectangle

        for token in weights.argsort().tolist():  # the largest last, so that nothing covers it
            if tokens.located[token]:
                x0, y0, x1, y1 = tokens.boxes[token].tolist()
                share = float(scale.norm(float(weights[token])))
                style: dict[str, Any] = {"edgecolor": scale.cmap(share), "linewidth": 0.6 + 2.4 * share, "alpha": 0.95}
                axes.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, **style))
    unlocated = weights[~tokens.located]
    if len(unlocated):
        axes.set_xlabel(f"class token {float(unlocated.sum()):.0%}", fontsize=8, color=theme.faint)


def _show_bars(axes: Any, tokens: TokenBoxes, weights: Tensor, scale: Any, theme: Theme) -> None:
    x = np.array(tokens.times) if tokens.times else np.arange(1.0, len(weights) + 1)
    width = 0.9 * (2 * x[0] if tokens.times else 1.0)  # the first frame is taken half an interval from the beginning
    axes.bar(x, weights.numpy(), color=scale.cmap(scale.norm(weights.numpy())), width=width)
    axes.set_ylim(min(0.0, scale.norm.vmin), scale.norm.vmax * 1.05)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    unit = "seconds" if tokens.times else "frame" if tokens.kind == "frames" else "token"
    axes.set_xlabel(unit, fontsize=8, color=theme.faint)


def show_matrix(axes: Any, values: Tensor, scale: Any, form: str = "{:.3f}") -> None:
    """(rows, columns) with its numbers, dark on light cells and light on dark ones."""
    axes.imshow(values.numpy(), cmap=scale.cmap, norm=scale.norm, aspect="auto")
    for row, column in np.ndindex(*values.shape):
        value = round(float(values[row, column]), 4) + 0.0  # no minus before a zero
        red, green, blue, _ = scale.cmap(scale.norm(value))
        colour = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"
        axes.text(column, row, form.format(value), ha="center", va="center", fontsize=8, color=colour)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)


def label_words(axes: Any, explanation: Explanation, theme: Theme) -> None:
    """The words under the columns; special tokens faint, words the model does not know in brackets."""
    names = [_shorten(word.text, 18) if word.known else f"({_shorten(word.text, 16)})" for word in explanation.words]
    # Side by side as long as they fit, then aslant, then upright.
    room = sum(len(name) + 2 for name in names)
    turn = 0 if room <= 90 else 35 if len(names) <= 36 else 90
    size = 7.5 if turn == 90 else 9
    axes.set_xticks(range(len(names)), names, fontsize=size, rotation=turn, ha="right" if turn == 35 else "center")
    for label, word in zip(axes.get_xticklabels(), explanation.words, strict=True):
        label.set_color(theme.faint if word.special or not word.known else theme.ink)


def wrap(text: str, width: int, lines: int) -> str:
    """The text in at most so many lines; what is left out shows as an ellipsis."""
    return "\n".join(textwrap.wrap(text, width, max_lines=lines, placeholder=" …") or [_shorten(text, width)])


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
