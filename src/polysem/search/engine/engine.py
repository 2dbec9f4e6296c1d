from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError
from polysem.search.engine import exact, native
from polysem.search.engine.batch import search_alone, search_block
from polysem.search.engine.checks import checked_k, checked_mask, checked_queries, checked_vectors
from polysem.search.engine.contest import MANY, Contest
from polysem.search.engine.plan import FEWEST, Plan, measure
from polysem.search.engine.queries import Queries
from polysem.search.engine.race import Race
from polysem.search.engine.scan_data import Level
from polysem.search.engine.scoring import Scoring
from polysem.search.engine.sketch import learn_rotation, sketch
from polysem.search.engine.top_k import Hits, best

# A full scan of fewer items takes a single query about as long as the steps around it.
_FEW = 2048
# So few items for each result asked for leave bounds little to rule out.
_FEW_PER_HIT = 32
# Scores and numbers of queries held at once in a batch.
_SCORES = 1 << 25
# After bounds that ruled out too few, a query goes without them; after the next failure two, four and so on up to this.
_LONGEST_PAUSE = 32


class Engine:
    """Exact search of one array of sets. The array is read in place, never copied: it may be a memory map."""

    def __init__(
        self,
        vectors: NDArray[Any],
        scoring: Scoring,
        plan: Plan,
        rotation: NDArray[np.float64],
        sketches: Sequence[Level],
        uneven: float,
    ) -> None:
        self.vectors, self.scoring, self.plan = vectors, scoring, plan
        # Not a read-only map of a file, which torch would not take without a copy for every query.
        self.rotation = np.require(rotation, requirements="W")
        self.sketches, self.uneven = tuple(sketches), uneven
        self.full = Level(vectors)
        self._pause, self._next_pause = 0, 1

    @classmethod
    def build(
        cls,
        vectors: NDArray[Any],
        similarity: Mapping[str, Any],
        seed: int = 0,
        *,
        plan: Plan | None = None,
        like: Engine | None = None,
        asked: NDArray[Any] | None = None,
    ) -> Self:
        """vectors: (N, K, D) unit vectors, float32 or float16; similarity: its config, e.g. {"name": "mil"}.

        Measures which sketches pay unless a `plan` says so, for sets from the array and for those `asked` (n, L, D), if
        queries are of another kind. An engine `like` an earlier one takes over its rotation and plan: what is added
        to a collection later need not be studied again.
        """
        vectors, uneven = checked_vectors(vectors)
        scoring = Scoring.of(similarity)
        if scoring.normalises and vectors.shape[1] != 1:
            raise InputError(f"cosine compares single vectors, got sets of {vectors.shape[1]}. Choose smooth_chamfer.")
        if like is not None:
            if like.vectors.shape[1:] != vectors.shape[1:]:
                raise InputError(
                    f"Sets of {vectors.shape[1:]} cannot be sketched like sets of {like.vectors.shape[1:]}."
                )
            rotation, plan = like.rotation, like.plan
        else:
            rng = np.random.default_rng(seed)
            worth_studying = len(vectors) >= FEWEST if plan is None else bool(plan.prefixes)
            rotation = (
                learn_rotation(vectors, rng) if worth_studying and len(vectors) else np.empty((vectors.shape[2], 0))
            )
            plan = plan or measure(vectors, rotation, scoring, rng, asked)
            rotation = np.ascontiguousarray(rotation[:, : max(plan.prefixes, default=0)])
        if max(plan.prefixes, default=0) > vectors.shape[2]:
            raise InputError(f"A plan with prefixes {plan.prefixes} needs wider vectors than {vectors.shape[2]}.")
        return cls(vectors, scoring, plan, rotation, sketch(vectors, rotation, plan.prefixes), uneven)

    def search(
        self, query: NDArray[Any], k: int, allowed: NDArray[np.bool_] | None = None, *, brute: bool = False
    ) -> Hits:
        """The k best for one query (L, D), among the items of the mask `allowed`. `brute` scores every one of them."""
        return search_many([self], query, k, allowed, brute=brute)

    def search_batch(self, queries: NDArray[Any], k: int, allowed: NDArray[np.bool_] | None = None) -> list[Hits]:
        """`search` for many queries (Q, L, D), which share the work of reading the items, and the mask."""
        vectors, uneven = checked_queries(queries, self.vectors.shape[2])
        checked_k(k)
        rows = None if allowed is None else np.flatnonzero(checked_mask(allowed, len(self.vectors)))
        hits: list[Hits] = []
        step = max(1, _SCORES // max(len(self.vectors), vectors.shape[1] * vectors.shape[2]))
        for start in range(0, len(vectors), step):
            hits += search_block(self, vectors[start : start + step], uneven, k, rows)
        return hits

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """All that `build` found out, but for the vectors: a JSON-able dict and arrays."""
        arrays: dict[str, NDArray[Any]] = {"rotation": self.rotation}
        for number, level in enumerate(self.sketches):
            if level.side is not None:
                arrays |= {f"sketch{number}": level.values, f"side{number}": level.side}
        described = {
            "similarity": dict(self.scoring.part.config),
            "plan": self.plan.to_json(),
            "shape": list(self.vectors.shape),
            "uneven": self.uneven,
        }
        return described, arrays

    @classmethod
    def restore(cls, vectors: NDArray[Any], described: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The engine whose `state` this is, over the same vectors. Reads none of them."""
        if list(vectors.shape) != list(described["shape"]) or not vectors.flags.c_contiguous:
            raise InputError(f"This engine was built for vectors of {described['shape']}, got {vectors.shape}.")
        plan = Plan.from_json(described["plan"])
        sketches = [Level(arrays[f"sketch{i}"], arrays[f"side{i}"]) for i in range(len(plan.prefixes))]
        scoring = Scoring.of(described["similarity"])
        return cls(vectors, scoring, plan, arrays["rotation"], sketches, described["uneven"])

    @property
    def longest(self) -> float:
        """No item's vector is longer."""
        return 1 + self.uneven + 1e-6

    def bounds_pay(self, items: int, k: int) -> bool:
        """Whether to bound before scoring, for one query, so many items and results."""
        if not self.sketches or items < max(_FEW, _FEW_PER_HIT * k):
            return False
        if self._pause:
            self._pause -= 1
            return False
        return True

    def learn(self, scored: int, items: int) -> None:
        """Where bounds were of no use, spare the next queries the attempt."""
        if scored <= MANY * items:
            self._next_pause = 1
        else:
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _LONGEST_PAUSE)

    def prepare(self, vectors: NDArray[np.float32], uneven: float, *, sketched: bool) -> Queries:
        """Queries (Q, L, D) in the form of the vectors, and of the sketches if those are to be used."""
        return Queries.prepare(vectors, uneven, self.sketches if sketched else (), self.rotation, self.longest)


def search_many(
    engines: Sequence[Engine],
    query: NDArray[Any],
    k: int,
    allowed: NDArray[np.bool_] | None = None,
    *,
    brute: bool = False,
) -> Hits:
    """The k best of all engines together, as if their arrays were one: positions count on from engine to engine."""
    if not engines:
        raise InputError("search_many() needs at least one engine.")
    vectors, uneven = checked_queries(np.asarray(query)[None], engines[0].vectors.shape[2])
    race, starts = Race(checked_k(k)), np.cumsum([0, *(len(engine.vectors) for engine in engines)])
    mask = None if allowed is None else checked_mask(allowed, int(starts[-1]))
    bounded = []
    for place, engine in enumerate(engines):
        rows = None if mask is None else np.flatnonzero(mask[starts[place] : starts[place + 1]])
        size = len(engine.vectors) if rows is None else len(rows)
        bound = not brute and engine.bounds_pay(size, k)
        queries = engine.prepare(vectors, uneven, sketched=bound)
        library = native.library()
        if bound and library is not None and len(engines) == 1 and rows is None:
            return search_alone(engine, queries, race.k, library)
        contest = Contest(place, engine, queries, 0, rows)
        if bound:
            contest.open(race)
            bounded.append(contest)
        elif size:
            contest.score_all(race)
    for contest in bounded:
        contest.close(race)
    for contest in bounded:
        contest.engine.learn(race.scored_of(contest.place), contest.size)
    positions, scores = [np.empty(0, np.int64)], [np.empty(0)]
    for place, rows in race.finalists().items():
        positions.append(rows + starts[place])
        scores.append(exact.scores(engines[place].full, vectors, engines[place].scoring, [rows]))
    return best(np.concatenate(positions), np.concatenate(scores), k, race.scored)
