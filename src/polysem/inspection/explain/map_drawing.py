"""Values of local features drawn on their picture: heat maps of cells, boxes of regions, bars of the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from polysem.inspection.explain.explanation import Explanation
from polysem.inspection.score_map import ScoreMap

MAP_ALPHA = 0.62
"""How far the colours of a map cover the grey image under them."""
_DARKEST = 0.82
"""How far a map of the score darkens what does not speak for the caption."""
_DARK, _GLOW, _GLOWING = (0.0, 0.0, 0.0), (1.0, 0.62, 0.1), 0.42
_MOST_PHRASES = 2
_MOST_PIXELS = 480


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


def make_scale(theme: Theme, most: float, signed: bool = False) -> Any:
    """The colours of values from 0 (`signed`: from -most) to `most`, as a matplotlib `ScalarMappable`."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize, TwoSlopeNorm

    most = max(most, 1e-9)
    if signed:
        return ScalarMappable(TwoSlopeNorm(0, -most, most), theme.around_zero)
    return ScalarMappable(Normalize(0, most), theme.scale)


def show_image(axes: Any, image: Image.Image | None, grey: bool = False) -> None:
    """The image without axes, in its own coordinates."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    if image is None:
        return
    width, height = image.size
    small = image.copy()
    small.thumbnail((_MOST_PIXELS, _MOST_PIXELS))
    pixels = np.asarray(small.convert("L") if grey else small)
    axes.imshow(pixels, extent=(0, width, height, 0), cmap="gray" if grey else None, vmin=0, vmax=255)
    axes.set(xlim=(0, width), ylim=(height, 0))


def show_weights(axes: Any, explanation: Explanation, weights: Tensor, scale: Any, theme: Theme) -> None:
    """(N,) weights on the tokens' boxes: cells as a heat map, regions as boxes, the rest as bars in their order."""
    image, tokens = explanation.picture, explanation.places
    if tokens.kind in ("frames", "unknown") or image is None:
        _show_bars(axes, explanation, weights, scale, theme)
        return
    show_image(axes, image, grey=True)
    if tokens.kind == "cells":
        left, top, right, bottom = tokens.window
        colours = {"cmap": scale.cmap, "norm": scale.norm, "alpha": MAP_ALPHA, "interpolation": "nearest"}
        axes.imshow(tokens.as_map(weights).numpy(), extent=(left, right, bottom, top), **colours)
        axes.set(xlim=(0, tokens.size[0]), ylim=(tokens.size[1], 0))
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


@dataclass(frozen=True, eq=False)
class TitledMap:
    """A map of a score to draw, of the whole caption or of a phrase of it."""

    title: str
    map: ScoreMap
    score: float


def list_score_maps(explanation: Explanation) -> list[TitledMap]:
    """The maps to draw on the picture: of the first things that the caption names, each asked by itself, then of the
    whole caption. Empty without places."""
    placed = explanation.places.kind in ("cells", "boxes") and bool(explanation.places.located.any())
    if explanation.score_map is None or explanation.picture is None or not placed:
        return []
    title = {"sum": "all the words: adds to the score", "omission": "all the words: missed when hidden"}
    whole = TitledMap(title[explanation.score_map.how], explanation.score_map, explanation.score)
    phrases = explanation.phrase_maps[:_MOST_PHRASES]
    return [*(TitledMap(f"“{each.phrase}”", each.map, each.score) for each in phrases), whole]


def show_score_map(axes: Any, explanation: Explanation, found: TitledMap, theme: Theme) -> None:
    """The picture, bright and with a warm glow where it speaks for the words, and dark elsewhere."""
    tokens, shown = explanation.places, found.map.shown
    axes.set_title(found.title if len(found.title) < 40 else found.title[:38] + "…”", fontsize=10)
    if tokens.kind != "cells":
        show_weights(axes, explanation, shown, make_scale(theme, 1.0), theme)
        return
    show_image(axes, explanation.picture)
    light = np.sqrt(tokens.as_map(shown).numpy())  # the root: half the largest is well seen
    left, top, right, bottom = tokens.window
    # The glow shows on dark things too, which cannot be brighter than they are.
    for colour, alpha in ((_DARK, _DARKEST * (1 - light)), (_GLOW, _GLOWING * light)):
        layer = np.dstack([np.broadcast_to(colour, (*tokens.grid, 3)), alpha])
        axes.imshow(layer, extent=(left, right, bottom, top), interpolation="bilinear")
    axes.set(xlim=(0, tokens.size[0]), ylim=(tokens.size[1], 0))
    if found.map.remainder is not None:
        placed = float(found.map.values[tokens.located].sum())
        note = f"score {found.score:.3f}: {placed:+.3f} differs from place to place"
        axes.set_xlabel(note, fontsize=8, color=theme.faint)


def _show_bars(axes: Any, explanation: Explanation, weights: Tensor, scale: Any, theme: Theme) -> None:
    tokens = explanation.places
    x = np.array(tokens.times) if tokens.times else np.arange(1.0, len(weights) + 1)
    width = 0.9 * (2 * x[0] if tokens.times else 1.0)  # the first frame is taken half an interval from the beginning
    axes.bar(x, weights.numpy(), color=scale.cmap(scale.norm(weights.numpy())), width=width)
    axes.set_ylim(min(0.0, scale.norm.vmin), scale.norm.vmax * 1.05)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    unit = "seconds" if tokens.times else "frame" if tokens.kind == "frames" else "token"
    axes.set_xlabel(unit, fontsize=8, color=theme.faint)
