"""Why an image and a caption have the score they have."""

from polysem.inspection.explain.drawing import draw
from polysem.inspection.explain.explanation import Explanation, Near, Winning
from polysem.inspection.explain.making import explain

__all__ = ["Explanation", "Near", "Winning", "draw", "explain"]
