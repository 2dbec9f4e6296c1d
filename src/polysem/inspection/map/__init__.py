"""The joint space in two dimensions: every element of every set a marker, coloured by slot and shaped by modality."""

from polysem.inspection.map.draw import map_space, write
from polysem.inspection.map.layout import Map, MapItem, lay_out
from polysem.inspection.map.points import Points, points_of

__all__ = ["Map", "MapItem", "Points", "lay_out", "map_space", "points_of", "write"]
