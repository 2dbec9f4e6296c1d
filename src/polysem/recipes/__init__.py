"""Recipes: one short YAML per row of a paper's table, and small ones that train on a laptop in minutes."""

from polysem.recipes.loading import as_yaml, catalogue, load, names, parse, source
from polysem.recipes.schema import Recipe, TowerRecipe

__all__ = ["Recipe", "TowerRecipe", "as_yaml", "catalogue", "load", "names", "parse", "source"]
