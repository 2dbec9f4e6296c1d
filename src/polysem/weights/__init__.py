"""Pretrained weights by name: where they come from, whether they are whole, and fetching them.

enters: a name of `catalogue.yaml` → leaves: a folder or file with checked content.
"""

from __future__ import annotations

from polysem.weights.catalogue import CATALOGUE, WeightsEntry, find_entry
from polysem.weights.fetch import find_weights, get_weights, verify_weights
from polysem.weights.sources import WeightsError

__all__ = [
    "CATALOGUE",
    "WeightsEntry",
    "WeightsError",
    "find_entry",
    "find_weights",
    "get_weights",
    "verify_weights",
]
