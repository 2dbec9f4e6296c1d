"""Why an image and a caption have the score they have."""

from polysem.inspection.explain.contributions import Contributions, WinningDimensions, decompose_score
from polysem.inspection.explain.drawing import draw
from polysem.inspection.explain.explain import explain
from polysem.inspection.explain.explanation import CaptionSource, Explanation, LabelProbability, NearestCaption, Word

__all__ = [
    "CaptionSource",
    "Contributions",
    "Explanation",
    "LabelProbability",
    "NearestCaption",
    "WinningDimensions",
    "Word",
    "decompose_score",
    "draw",
    "explain",
]
