"""Similarities: sets against sets, a score for each pair.

Example:
    >>> import torch
    >>> from polysem import similarity
    >>> images, texts = torch.eye(4)[None, :2], torch.eye(4)[:3, None]  # one set of two, three sets of one
    >>> similarity.build("chamfer").scores(images, texts).tolist()
    [[0.75, 0.75, 0.0]]
"""

from polysem.similarity.base import InnerProductScore, Similarity, registry
from polysem.similarity.chamfer import Chamfer, SmoothChamfer
from polysem.similarity.cosine import MIL, Cosine
from polysem.similarity.match_probability import MatchProbability
from polysem.similarity.soft_maximum import SoftMaximum

registry.import_folder(__name__, __path__)

build = registry.build
check, names, describe = registry.check, registry.names, registry.describe

__all__ = ["InnerProductScore", "Similarity", "build", "check", "describe", "names", "registry"]
__all__ += ["MIL", "Chamfer", "Cosine", "MatchProbability", "SmoothChamfer", "SoftMaximum"]
