"""The joint space in two dimensions: every element of every set a marker, coloured by slot and shaped by modality."""

from typing import TYPE_CHECKING

from polysem._deprecated import find_deprecated
from polysem.inspection.map.drawing import map_space, write_map
from polysem.inspection.map.layout import Map, MapItem, lay_out
from polysem.inspection.map.points import MapPoints, make_points

__all__ = ["Map", "MapItem", "MapPoints", "lay_out", "make_points", "map_space", "write_map"]

if not TYPE_CHECKING:
    __getattr__ = find_deprecated(__name__)
