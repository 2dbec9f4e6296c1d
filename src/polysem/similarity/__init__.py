"""Similarities: sets against sets, a score for each pair."""

from polysem.similarity.base import InnerProductScore, Similarity, registry
from polysem.similarity.chamfer import Chamfer, SmoothChamfer
from polysem.similarity.match_probability import MatchProbability
from polysem.similarity.simple import MIL, Cosine

registry.import_folder(__name__, __path__)

build = registry.build
check = registry.check
names = registry.names
describe = registry.describe

__all__ = [
    "MIL",
    "Chamfer",
    "Cosine",
    "InnerProductScore",
    "MatchProbability",
    "Similarity",
    "SmoothChamfer",
    "build",
    "check",
    "describe",
    "names",
    "registry",
]
