"""The whole of polysem in one call: data, features, two models, their comparison, an index and two searches."""

from polysem.demo.questions import Found
from polysem.demo.steps import RECIPES, Demo, demo

__all__ = ["RECIPES", "Demo", "Found", "demo"]
