"""The whole of polysem in one call: data, features, two models, their comparison, an index and two searches.

One's own pictures without captions go straight into the index.
"""

from polysem.demo.steps import RECIPES, Demo, ExampleSearch, demo

__all__ = ["RECIPES", "Demo", "ExampleSearch", "demo"]
