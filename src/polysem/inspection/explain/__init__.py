"""Why an image and a caption have the score they have."""

from polysem.inspection.explain.drawing import draw
from polysem.inspection.explain.explain import explain
from polysem.inspection.explain.explanation import (
    CaptionSource,
    Contributions,
    Explanation,
    LabelProbability,
    NearestCaption,
    WinningDimensions,
    Word,
    decompose_score,
)

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
