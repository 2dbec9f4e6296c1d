"""The exact engine: the k best sets of an array for a query set, without scoring all of them where that can be avoided.

The score of two sets is their similarity in float64, computed from the vectors as stored (`exact`). Everything before
that only chooses whom to score: a scan in float32 (`scan`, natively or with torch) or, where it pays, upper bounds from
a compact sketch (`sketch`), each with a slack that covers its rounding. So the answer never depends on the way to it.
"""

from polysem.search.engine.engine import Engine, search_many
from polysem.search.engine.plan import Plan
from polysem.search.engine.top_k import Hits

__all__ = ["Engine", "Hits", "Plan", "search_many"]
