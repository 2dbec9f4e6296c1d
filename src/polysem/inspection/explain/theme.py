"""Light and dark: the colours of a drawing. All readable without telling red from green."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

ThemeName = Literal["light", "dark"]

# Families that complete each other: the first has no emoji and no Asian scripts.
FONTS = ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans", "Noto Emoji", "Segoe UI", "Arial Unicode MS")


@dataclass(frozen=True)
class Theme:
    """paper, ink: background and text. faint: text of less weight. matching: captions of the image itself.

    scale: of shares, from 0 up. around_zero: of parts that may speak against a match.
    """

    paper: str
    ink: str
    faint: str
    matching: str
    scale: str = "viridis"
    around_zero: str = "PuOr"


THEMES: dict[ThemeName, Theme] = {
    "light": Theme("#ffffff", "#1b1f24", "#5f6b76", "#0b6e4f"),
    "dark": Theme("#14171c", "#eceff3", "#a3adb8", "#5fd3a6"),
}


@contextmanager
def applied(theme: Theme) -> Iterator[None]:
    """Drawings made and saved in here have this theme."""
    import matplotlib
    from matplotlib import font_manager

    here = set(font_manager.get_font_names())
    settings: dict[Any, Any] = {
        "figure.facecolor": theme.paper,
        "savefig.facecolor": theme.paper,
        "axes.facecolor": theme.paper,
        "axes.edgecolor": theme.faint,
        "axes.labelcolor": theme.ink,
        "axes.titlecolor": theme.ink,
        "text.color": theme.ink,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "font.family": [name for name in FONTS if name in here] or ["sans-serif"],
        "text.parse_math": False,  # a dollar in a caption is a dollar
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # A caption in a script that no installed font knows is still worth drawing.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield
