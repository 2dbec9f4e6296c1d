"""What the exact search of sets is compared with. Each is a name and a function: a query set -> the positions found."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from search_data import Sets, unit

from polysem.search.engine import Engine
from polysem.search.engine.scan import score_exactly

try:
    import faiss
except ImportError:
    faiss = None
try:
    import lancedb
    import pyarrow
except ImportError:
    lancedb = None

TOP, CANDIDATES = 10, 100
# Larger tables take LanceDB minutes to index.
LANCE_ITEMS = 20_000
Search = Callable[[Sets], NDArray[np.int64]]


def set_threads(count: int) -> None:
    torch.set_num_threads(count)
    if faiss is not None:
        faiss.omp_set_num_threads(count)


def torch_brute(engine: Engine) -> Search:
    part, items = engine.scoring.part, torch.from_numpy(engine.vectors)
    return lambda query: part.scores(torch.from_numpy(query)[None], items)[0].topk(TOP).indices.numpy()


def single_flat(engine: Engine) -> tuple[Search, Search]:
    """Exact search of the items' mean vectors by the query's: alone, and with the best of it scored as sets."""
    means = np.concatenate([unit(part.astype(np.float32).mean(1)) for part in _blocks(engine.vectors)])
    if faiss is None:
        tensor = torch.from_numpy(means)

        def nearest(query: Sets, count: int) -> NDArray[np.int64]:
            return (tensor @ torch.from_numpy(unit(query.mean(0)))).topk(count).indices.numpy()
    else:
        index = faiss.IndexFlatIP(means.shape[1])
        index.add(means)

        def nearest(query: Sets, count: int) -> NDArray[np.int64]:
            found: NDArray[np.int64] = index.search(unit(query.mean(0))[None], count)[1][0]
            return found

    return lambda query: nearest(query, TOP), lambda query: _rescored(engine, query, nearest(query, CANDIDATES))


def lance(engine: Engine) -> tuple[Search, float]:
    """LanceDB's multivector search (approximate, and by MaxSim), its best scored as sets; and its bytes per item."""
    N, K, D = engine.vectors.shape
    folder = tempfile.TemporaryDirectory()
    values = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(engine.vectors.reshape(-1)), D)
    sets = pyarrow.ListArray.from_arrays(pyarrow.array(np.arange(0, N * K + 1, K, dtype=np.int32)), values)
    table = lancedb.connect(folder.name).create_table("sets", pyarrow.table({"id": np.arange(N), "vector": sets}))
    table.create_index(metric="cosine", vector_column_name="vector")

    def search(query: Sets, _held: object = folder) -> NDArray[np.int64]:
        found = (
            table.search(query).limit(CANDIDATES).nprobes(20).refine_factor(10).select(["id", "_distance"]).to_arrow()
        )
        return _rescored(engine, query, np.unique(found["id"].to_numpy()))

    size = sum(file.stat().st_size for file in Path(folder.name).rglob("*") if file.is_file())
    return search, size / N


def _rescored(engine: Engine, query: Sets, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    scores = score_exactly(engine.full, np.ascontiguousarray(query[None]), engine.scoring, [rows])
    best: NDArray[np.int64] = rows[np.lexsort((rows, -scores))[:TOP]]
    return best


def _blocks(vectors: Sets, step: int = 50_000) -> list[Sets]:
    return [vectors[start : start + step] for start in range(0, len(vectors), step)]
