"""An `Explanation` as a picture, in the manner of the DivE supplement's figures A2 and A3."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from polysem.atomic_write import replace_file
from polysem.errors import InputError, PolysemError, unknown
from polysem.inspection.explain.explanation import Explanation
from polysem.inspection.explain.theme import THEMES, ThemeName, applied

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg", ".pdf")
DPI = 150


def draw(explanation: Explanation, out: str | Path, theme: str = "light") -> Path:
    """Write the drawing to `out`, a .png, .svg or .pdf file. theme: light or dark."""
    path = check_out(out)
    check_theme(theme)
    chosen = THEMES[cast(ThemeName, theme)]
    with applied(chosen):
        figure = make_figure(explanation, theme)
        try:
            with replace_file(path) as aside:
                figure.savefig(aside, dpi=DPI)
        except OSError as error:
            raise PolysemError(f"Cannot write {path}: {error.strerror or error}.") from None
    return path


def make_figure(explanation: Explanation, theme: str = "light") -> Figure:
    """The drawing as a matplotlib figure. Without a display and without pyplot's global state."""
    from matplotlib.figure import Figure

    from polysem.inspection.explain.set_layout import lay_out_set
    from polysem.inspection.explain.single_layout import lay_out_single

    check_theme(theme)
    chosen = THEMES[cast(ThemeName, theme)]
    with applied(chosen):
        single = explanation.image.weights.shape[:2] == (1, 1) and explanation.text.weights.shape[:2] == (1, 1)
        lay_out: Any = lay_out_single if single else lay_out_set
        figure = Figure(layout="constrained")
        lay_out(figure, explanation, chosen)
    return figure


def check_out(out: str | Path) -> Path:
    """The file to write, if it can be: in a folder that exists, with an ending that says what it shall be."""
    path = Path(out).expanduser()
    if path.suffix.lower() not in ENDINGS:
        raise InputError(
            f"{path}: the ending says what to write, and {path.suffix or 'none'} is not known. "
            f"Take one of {', '.join(ENDINGS)}."
        )
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}. Make it first: mkdir -p {path.parent}")
    if path.is_dir():
        raise InputError(f"{path} is a folder. Give the name of a file in it.")
    return path


def check_theme(theme: str) -> None:
    if theme not in get_args(ThemeName):
        raise unknown("theme", theme, get_args(ThemeName))
