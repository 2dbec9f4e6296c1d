"""Inspection: why a match happened, what the space looks like, and whether the sets are diverse."""

from polysem.inspection.attention import Attention, image_attentions, text_attentions
from polysem.inspection.contributions import Contributions, contributions
from polysem.inspection.diagnose import Diagnosis, Verdict, diagnose
from polysem.inspection.explain import Explanation, draw, explain
from polysem.inspection.map import Map, Points
from polysem.inspection.map import map_space as map  # noqa: A004 - the name of the command
from polysem.inspection.token_boxes import Places, places, regions, stored_places

__all__ = [
    "Attention",
    "Contributions",
    "Diagnosis",
    "Explanation",
    "Map",
    "Places",
    "Points",
    "Verdict",
    "contributions",
    "diagnose",
    "draw",
    "explain",
    "image_attentions",
    "map",
    "places",
    "regions",
    "stored_places",
    "text_attentions",
]
