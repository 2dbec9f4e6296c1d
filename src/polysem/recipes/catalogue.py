"""The recipes that come with polysem, family by family."""

from __future__ import annotations

from polysem.recipes.loading import load, names
from polysem.recipes.schema import Recipe

FAMILIES = {
    "small": "Small versions, for a CPU and a few thousand pictures",
    "photo": "Photographs",
    "vse++": "VSE++",
    "vse-infty": "VSE∞",
    "vse-2ad": "VSE+2AD",
    "pvse": "PVSE",
    "pcme": "PCME",
    "dscmr": "DSCMR",
    "semantic-sharing": "Label-wise semantic sharing",
    "dive": "DivE",
}
"""How a family's names begin, and its title, in the order of a first look: what runs anywhere, then by year."""


def catalogue() -> dict[str, list[Recipe]]:
    """Every recipe by the title of its family, in alphabetical order."""
    found: dict[str, list[Recipe]] = {title: [] for title in FAMILIES.values()}
    for name in names():
        found[FAMILIES[family(name)]].append(load(name))
    return found


def family(name: str) -> str:
    """The family that a recipe's name begins with."""
    return next(start for start in FAMILIES if name == start or name.startswith(f"{start}-"))
