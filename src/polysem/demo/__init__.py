"""The whole of polysem in one call: data, features, three models, their comparison, an index and two searches.

One's own pictures without captions go straight into the index.
"""

from polysem.demo.steps import MODELS, RECIPE, Demo, ExampleSearch, demo

__all__ = ["MODELS", "RECIPE", "Demo", "ExampleSearch", "demo"]
