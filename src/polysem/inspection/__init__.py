"""Inspection: why a match happened, what the space looks like, and whether the sets are diverse."""

from polysem.inspection.attention import Attention, image_attentions, text_attentions
from polysem.inspection.diagnose import Diagnosis, HealthVerdict, diagnose
from polysem.inspection.explain import Contributions, Explanation, decompose_score, draw, explain
from polysem.inspection.map import Map, MapPoints
from polysem.inspection.map import map_space as map  # noqa: A004 - the name of the command
from polysem.inspection.score_map import ScoreMap, map_score
from polysem.inspection.token_boxes import TokenBoxes, locate_regions, locate_stored_tokens, locate_tokens

__all__ = [
    "Attention",
    "Contributions",
    "Diagnosis",
    "Explanation",
    "HealthVerdict",
    "Map",
    "MapPoints",
    "ScoreMap",
    "TokenBoxes",
    "decompose_score",
    "diagnose",
    "draw",
    "explain",
    "image_attentions",
    "locate_regions",
    "locate_stored_tokens",
    "locate_tokens",
    "map",
    "map_score",
    "text_attentions",
]
