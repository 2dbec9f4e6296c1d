"""The native kernels, where the install could build them. POLYSEM_NATIVE=0 turns them off, =portable only AVX2."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from polysem.search.engine.scan import Rows, ScanItems, ScanQueries
    from polysem.search.engine.scoring import Float32, Float64, Int64, Scoring

# What kernels.c makes of inner products. The last four are one-sided, over the vectors of items or of queries.
_SOFT_BOTH_WAYS, _BOTH_WAYS, _LARGEST = 0, 1, 2
_SOFT_OF_ITEM, _SOFT_OF_QUERY, _MAX_OF_ITEM, _MAX_OF_QUERY = 3, 4, 5, 6
_CODES = {"max": _LARGEST, "chamfer": _BOTH_WAYS, "smooth_chamfer": _SOFT_BOTH_WAYS}
_TYPES = {np.dtype("float32"): 0, np.dtype("float16"): 1, np.dtype("int8"): 2}
_LANES, _FOURS = 8, 4
_int = ctypes.c_int64


class _Task(ctypes.Structure):
    """`Task` of kernels.c."""

    _fields_ = [
        ("similarity", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("alpha", ctypes.c_float),
        ("cap", ctypes.c_float),
        *((name, ctypes.c_int64) for name in ("K", "L", "D", "padded")),
        *((name, ctypes.c_void_p) for name in ("items", "side", "query", "norms")),
    ]


def library() -> ctypes.CDLL | None:
    """The native kernels, or None where they are missing or turned off."""
    return _select(os.environ.get("POLYSEM_NATIVE", "1"))


@lru_cache(1)  # asked for many times a search, changed by tests
def _select(wish: str) -> ctypes.CDLL | None:
    kernels = None if wish == "0" else _load()
    if kernels is not None:
        kernels.polysem_choose(ctypes.c_int(wish == "portable"))
    return kernels


@cache
def _load() -> ctypes.CDLL | None:
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_kernels{suffix}")
        try:
            library = ctypes.CDLL(str(path))
        except OSError:  # not built, or built for another machine
            continue
        # Built from an older source, as in an editable install after an update: torch does it, and it is right.
        if not hasattr(library, "polysem_similarities") or library.polysem_similarities() != _MAX_OF_QUERY + 1:
            continue
        library.polysem_largest.restype = ctypes.c_int64
        library.polysem_norms.restype = None
        return library
    return None


class Native:
    """The kernels for one array of items and one or more queries. Calls release the GIL: threads run side by side."""

    def __init__(self, library: ctypes.CDLL, items: ScanItems, queries: ScanQueries, scoring: Scoring) -> None:
        count, L, D = queries.vectors.shape
        fours, padded = -(-L // _FOURS) * _FOURS, -(-D // _LANES) * _LANES
        query = queries.vectors
        if (fours, padded) != (L, D) or not query.flags.c_contiguous:
            query = np.zeros((count, fours, padded), np.float32)
            query[:, :L, :D] = queries.vectors
        norms = None
        if queries.within is not None and queries.outside is not None:
            norms = np.zeros((count, 2, fours), np.float32)
            norms[:, 0, :L], norms[:, 1, :L] = queries.within, queries.outside
            norms = np.ascontiguousarray(norms.reshape(count, 2, -1, _FOURS).swapaxes(1, 2))
        self._library = library
        self._held = (items, query, norms)  # the pointers below do not keep their arrays alive
        self._task = _Task(
            _code(scoring, bounds=items.norms is not None),
            _TYPES[items.values.dtype],
            scoring.formula.alpha,
            min(queries.cap, 1e30),
            *(items.values.shape[1], L, D, padded),
            *(*items.addresses, address(query), address(norms)),
        )
        self._at = ctypes.byref(self._task)

    def scan(self, scores: Float32, rows: Rows, first: int, last: int) -> None:
        """Fill scores (n,) of the first to the last item (of the rows)."""
        _check(self._library.polysem_scan(self._at, _pointer(rows), _int(first), _int(last), _pointer(scores)))

    def batch(self, queries: tuple[int, int], items: tuple[int, int], scores: Float32) -> None:
        """scores: (Q, N), of which those of queries and items first to last are filled."""
        numbers = (_int(value) for value in (*queries, *items, scores.shape[1]))
        _check(self._library.polysem_batch(self._at, *numbers, _pointer(scores)))

    def products(self, rows: Int64, starts: Int64, out: Float64, first: int, last: int) -> None:
        """Fill out (n, K, L), inner products in float64, for queries first to last: of query q with the rows from
        starts[q] to starts[q + 1]."""
        call, pointers = self._library.polysem_products, [_pointer(array) for array in (starts, rows, out)]
        _check(call(self._at, _int(first), _int(last), *pointers))


def _code(scoring: Scoring, bounds: bool) -> int:
    """What kernels.c makes of inner products, or of `bounds` on them: those of a soft maximum bound the plain one."""
    if scoring.formula.formula != "soft_maximum":
        return _CODES[scoring.formula.formula]
    if scoring.side == "image":
        return _MAX_OF_ITEM if bounds else _SOFT_OF_ITEM
    return _MAX_OF_QUERY if bounds else _SOFT_OF_QUERY


def find_candidates(
    library: ctypes.CDLL,
    arrays: Sequence[Native],
    bounds: Float32,
    slacks: Sequence[float],
    ranks: tuple[int, int, int],
    queries: tuple[int, int],
    scored: Int64,
) -> tuple[Int64, Int64, Float64]:
    """Items that may be among the k best of queries first to last: their rows, where each query's start, and exact
    products (n, K, L). A query has no rows where there was no room for all.

    arrays: the sketches that follow the bounds (Q, N), which are overwritten, and last the vectors. slacks: of the
    bounds, of each array, and of scores from exact products. ranks: k; how many are scored to set the threshold, 0
    where the bounds are scores; the room for each query. scored: (Q,), filled with how many items were scored.
    """
    (first, last), task = queries, arrays[-1]._task
    room = (last - first) * ranks[2]
    rows, products = np.empty(room, np.int64), np.empty((room, task.K, task.L))
    starts = np.empty(last - first + 1, np.int64)
    tasks = (_Task * len(arrays))(*(array._task for array in arrays))
    status = library.polysem_decide(
        *(tasks, _int(len(arrays)), _int(first), _int(last), _pointer(bounds), _int(bounds.shape[1])),
        *((ctypes.c_float * len(slacks))(*slacks), *(_int(rank) for rank in ranks)),
        *(_pointer(array) for array in (rows, products, starts, scored)),
    )
    _check(status)
    return rows[: starts[-1]], starts, products[: starts[-1]]


def sort_candidates(
    library: ctypes.CDLL, candidates: tuple[Int64, Int64, Float64], positions: Int64, best: Float64
) -> None:
    """Fill (queries, k) positions and scores with the best of each query's (starts, rows, scores), best first."""
    queries, k = (_int(size) for size in positions.shape)
    _check(library.polysem_order(queries, *map(_pointer, candidates), k, _pointer(positions), _pointer(best)))


def measure_norms(library: ctypes.CDLL, vectors: NDArray[Any], first: int, last: int) -> tuple[float, float]:
    """The least and the largest squared norm of vectors (..., D), counted through; NaN is below and above all."""
    extremes = np.array([np.inf, -np.inf])
    kind, numbers = ctypes.c_int32(_TYPES[vectors.dtype]), (_int(n) for n in (first, last, vectors.shape[-1]))
    library.polysem_norms(_pointer(vectors), kind, *numbers, _pointer(extremes))
    return float(extremes[0]), float(extremes[1])


def find_largest(library: ctypes.CDLL, scores: Float32, k: int) -> Int64:
    """The positions of the k largest scores, in no order."""
    positions = np.empty(min(k, len(scores)), np.int64)
    library.polysem_largest(_pointer(scores), _int(len(scores)), _int(len(positions)), _pointer(positions))
    return positions


def _check(status: int) -> None:
    if status:
        raise MemoryError("No memory for the scan. Search fewer queries at once.")


def address(array: NDArray[Any] | None) -> int | None:
    # Not array.ctypes.data, which is an object of its own and ten times as slow.
    return None if array is None else int(array.__array_interface__["data"][0])


def _pointer(array: NDArray[Any] | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(address(array))
