"""Values of local features drawn on their picture: heat maps of cells, boxes of regions, bars of the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from PIL import Image
from torch import Tensor

from polysem.inspection.explain.explanation import Explanation
from polysem.inspection.score_map import ScoreMap

MAP_ALPHA = 0.62
"""How far the colours of a map cover the grey image under them."""
_DARKEST = 0.82
"""How far a map of the score darkens what does not speak for the caption."""
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


def has_score_map(explanation: Explanation) -> bool:
    """Whether there is a map of the score to draw on the picture."""
    placed = explanation.places.kind in ("cells", "boxes") and bool(explanation.places.located.any())
    return explanation.score_map is not None and explanation.picture is not None and placed


def show_score_map(axes: Any, explanation: Explanation, theme: Theme) -> None:
    """The picture in its own colours, bright where it speaks for the caption and dark elsewhere."""
    found, tokens = cast(ScoreMap, explanation.score_map), explanation.places
    shown = found.shown
    axes.set_title(
        {"sum": "bright: adds to the score", "omission": "bright: missed when hidden"}[found.how], fontsize=10
    )
    if tokens.kind != "cells":
        show_weights(axes, explanation, shown, make_scale(theme, 1.0), theme)
        return
    show_image(axes, explanation.picture)
    dark = np.zeros((*tokens.grid, 4))
    dark[..., 3] = _DARKEST * (1 - np.sqrt(tokens.as_map(shown).numpy()))  # the root: half the largest is well seen
    left, top, right, bottom = tokens.window
    axes.imshow(dark, extent=(left, right, bottom, top), interpolation="bilinear")
    axes.set(xlim=(0, tokens.size[0]), ylim=(tokens.size[1], 0))
    if found.remainder is not None:
        placed = float(found.values[tokens.located].sum())
        note = f"what differs from place to place {placed:+.3f}, the rest {explanation.score - placed:+.3f}"
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
