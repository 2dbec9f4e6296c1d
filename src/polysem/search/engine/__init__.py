"""The exact engine: the k best sets of an array for a query set, without scoring all of them where that can be avoided.

The score of two sets is their similarity in float64, computed from the vectors as stored. Everything before that only
chooses what to score: a scan in float32 (`scan`, natively or with torch) or, where it pays, upper bounds from
a compact sketch (`sketch`, `pruning`), each with a slack that covers its rounding. So results never depend on the path.
"""

from polysem.search.engine.engine import Engine, search_engines
from polysem.search.engine.scan import TopHits
from polysem.search.engine.sketch import SketchPlan

__all__ = ["Engine", "SketchPlan", "TopHits", "search_engines"]
