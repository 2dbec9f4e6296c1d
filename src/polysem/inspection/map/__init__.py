"""The joint space in two dimensions: every element of every set a marker, coloured by slot and shaped by modality."""

from polysem.inspection.map.drawing import map_space, write_map
from polysem.inspection.map.layout import Map, MapItem, MapPoints, lay_out, make_index_points, make_points

__all__ = ["Map", "MapItem", "MapPoints", "lay_out", "make_index_points", "make_points", "map_space", "write_map"]
