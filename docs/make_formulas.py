"""A hook of mkdocs: formulas between dollar signs become MathML while the site is built.

Browsers draw MathML themselves, so that the pages need no script, no fonts and nothing from outside. A formula that
cannot be read stops the build.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

# What the extension arithmatex leaves of `$…$` and `$$…$$`.
FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">(?:\\\((?P<inline>.*?)\\\)|\\\[(?P<block>.*?)\\\])</(?P=tag)>', re.DOTALL
)


def mathml(formula: re.Match[str]) -> str:
    block = formula["block"]
    source = html.unescape(formula["inline"] if block is None else block).strip()
    drawn = convert(source, display="inline" if block is None else "block")
    unread = re.search(r">(\\\w+|&amp;|&)<", drawn)
    if unread:
        raise PluginError(f"The formula {source!r} has a command that cannot be drawn: {unread[0][1:-1]}")
    # Screen readers speak MathML; the source is there for whoever wants to copy it.
    drawn = drawn.replace("<math ", f'<math alttext="{html.escape(source)}" ', 1)
    return drawn if block is None else f'<div class="formula">{drawn}</div>'


def on_page_content(content: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    return FORMULA.sub(mathml, content)
