"""What docs/benchmarks/search.md claims of many shards, checked at a small scale.

Synthetic sets are cut into shards, at random or by topic. Each shard gives its own list, the lists are merged:

    exact       the exact best 10 of each shard: the merged list must be the global one, to the last bit
    budget      M candidates in total by the inner product of set means, M/S from each of S shards, scored exactly
    each        M candidates from every shard: S·M in total
    merged      the M best candidates of all shards by their means (what Milvus does within a collection)

Recall is the share of the exact global best 10 that is found. `plans` works out a billion items from what is assumed.

    python benchmarks/scale.py                  # ten minutes, one thread
    python benchmarks/scale.py --items 5000     # a quick look
    python benchmarks/scale.py --only plans     # the arithmetic alone
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from polysem.search.engine import Engine

RESULTS = Path(__file__).parent / "results" / "scale.json"
SIMILARITY = {"name": "smooth_chamfer", "alpha": 16.0}
K, WIDTH, TOPICS, TOP = 4, 256, 200, 10
# What the arithmetic of `plans` rests on. Prices are of a gigabyte and month.
ASSUMED: dict[str, Any] = {
    "items": 10**9,
    "facts": 20,
    "ranges_bytes": 120,
    "item_bytes": 300,
    "pq_bytes": 64,
    "machine_gb": 128,
    "filled": 0.7,
    "ram_dollars": 3.0,
    "ssd_dollars": 0.1,
    "object_dollars": 0.023,
}
SHARDS = (1, 2, 4, 8, 16)
CANDIDATES = (20, 50, 100, 200, 500, 1000)
# How far the elements of an item lie apart, beside its own spread of 1 around its topic.
SPREADS = (0.8, 1.6)
Sets = NDArray[np.float32]


def unit(x: NDArray[Any]) -> Sets:
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def make(items: int, queries: int, spread: float) -> tuple[Sets, Sets, NDArray[np.int64]]:
    """Items of decaying spectrum, queries that are noisy copies of some of them, and each item's topic."""
    rng = np.random.default_rng(0)
    weights = (np.arange(1, WIDTH + 1) ** -0.5).astype(np.float32)
    topics = rng.standard_normal((TOPICS, WIDTH), dtype=np.float32)
    topic = rng.integers(0, TOPICS, items)
    centres = topics[topic] + rng.standard_normal((items, WIDTH), dtype=np.float32)
    noise = rng.standard_normal((items, K, WIDTH), dtype=np.float32)
    vectors = unit((centres[:, None] + spread * noise) * weights)
    blur = unit(rng.standard_normal((queries, K, WIDTH), dtype=np.float32) * weights)
    return vectors, unit(vectors[rng.integers(0, items, queries)] + 0.6 * blur), topic


def cut(topic: NDArray[np.int64], shards: int, by: str) -> NDArray[np.int64]:
    """The shard of each item. By topic: whole topics, as even as they come."""
    if by == "random":
        return np.random.default_rng(1).permutation(len(topic)) % shards
    return topic % shards


def of_each(order: NDArray[np.int64], shard: NDArray[np.int64], shards: int, most: int) -> NDArray[np.int64]:
    """The first `most` of each shard, of items in order of their means."""
    return np.concatenate([order[shard[order] == one][:most] for one in range(shards)])


def recall(truth: list[Any], candidates: Iterable[NDArray[np.int64]]) -> float:
    """Candidates are scored exactly: what belongs to the best and is among them is found."""
    return float(np.mean([np.isin(best.positions, some).mean() for best, some in zip(truth, candidates, strict=True)]))


def exact_lists_merge(vectors: Sets, queries: Sets, shard: NDArray[np.int64], shards: int, truth: list[Any]) -> int:
    """For how many queries the merged exact lists are the global list, in items, order and scores."""
    rows = [np.flatnonzero(shard == one) for one in range(shards)]
    engines = [Engine.build(np.ascontiguousarray(vectors[own]), SIMILARITY) for own in rows]
    same = 0
    for query, whole in zip(queries, truth, strict=True):
        lists = [engine.search(query, TOP) for engine in engines]
        positions = np.concatenate([own[hits.positions] for own, hits in zip(rows, lists, strict=True)])
        scores = np.concatenate([hits.scores for hits in lists])
        order = np.lexsort((positions, -scores))[:TOP]
        same += bool((positions[order] == whole.positions).all() and (scores[order] == whole.scores).all())
    return same


def simulate(items: int, queries: int, spread: float, console: Console) -> dict[str, Any]:
    vectors, asked, topic = make(items, queries, spread)
    engine = Engine.build(vectors, SIMILARITY)
    truth = [engine.search(query, TOP) for query in asked]
    means, middles = vectors.mean(1), asked.mean(1)
    orders = [np.argsort(-(means @ middle), kind="stable") for middle in middles]
    rows = []
    for by, shards in track([(by, shards) for by in ("random", "topic") for shards in SHARDS], console=console):
        shard = cut(topic, shards, by)
        found: dict[str, dict[str, float]] = {"budget": {}, "each": {}, "merged": {}}
        for most in CANDIDATES:
            share, key = -(-most // shards), str(most)
            found["budget"][key] = recall(truth, [of_each(order, shard, shards, share) for order in orders])
            found["each"][key] = recall(truth, [of_each(order, shard, shards, most) for order in orders])
            found["merged"][key] = recall(truth, [order[:most] for order in orders])
        rows.append(
            {
                "sharded": by,
                "shards": shards,
                "exact_lists_identical": exact_lists_merge(vectors, asked, shard, shards, truth) / len(asked),
                "recall_at_10": found,
            }
        )
    found_by_size = growth(items, queries, spread)
    return {"items": items, "queries": queries, "spread": spread, "rows": rows, "growth": found_by_size}


def growth(items: int, queries: int, spread: float) -> list[dict[str, Any]]:
    """The same queries against more and more items: how many candidates keep the recall?"""
    vectors, asked, _ = make(items, queries, spread)
    rng, rows = np.random.default_rng(2), []
    shuffled = vectors[rng.permutation(items)]
    for size in (items // 16, items // 4, items):
        own = np.ascontiguousarray(shuffled[:size])
        engine, means = Engine.build(own, SIMILARITY), own.mean(1)
        truth = [engine.search(query, TOP) for query in asked]
        orders = [np.argsort(-(means @ query.mean(0)), kind="stable") for query in asked]
        found = {str(most): recall(truth, [order[:most] for order in orders]) for most in CANDIDATES}
        rows.append({"items": size, "recall_at_10": found})
    return rows


def plans() -> list[dict[str, Any]]:
    """Memory, disks, machines and money for a billion items: arithmetic on `ASSUMED` and on the layout of a row."""
    found = []
    for width in (256, 1024):
        mean, links = 4 * width, 4 * 2 * 32 + 16  # HNSW, M = 32: 64 links in the lowest layer, a few above
        vectors = {
            "HNSW": (mean + links, 0),
            "IVF_SQ8": (width + 8, 0),
            "DISKANN": (ASSUMED["pq_bytes"], mean + 4 * 64),  # the codes in memory, vectors and a graph of 64 on disk
        }
        fields = 32 + 8 + 8 + 8 * ASSUMED["facts"] + ASSUMED["ranges_bytes"]
        on_disk = 4 * 2 * width * 4 / 3 + ASSUMED["item_bytes"]  # sets of 4 in float16 as base64, and what they are
        for name, (memory, disk) in vectors.items():
            # Bytes for each item are gigabytes for a billion.
            ram, ssd = memory + fields, disk + on_disk
            stored = mean + fields + on_disk  # all of it, in object storage
            money = ram * ASSUMED["ram_dollars"] + ssd * ASSUMED["ssd_dollars"] + stored * ASSUMED["object_dollars"]
            found.append(
                {
                    "width": width,
                    "index": name,
                    "vectors_in_memory_gb": memory,
                    "memory_gb": ram,
                    "ssd_gb": round(ssd),
                    "object_gb": round(stored),
                    "machines": math.ceil(ram / (ASSUMED["machine_gb"] * ASSUMED["filled"])),
                    "dollars_a_month": round(money),
                }
            )
    return found


def show(simulated: dict[str, Any], console: Console) -> None:
    table = Table(title=f"Recall@10 of {simulated['items']:,} items, elements spread {simulated['spread']}")
    for column in ("sharded", "shards", "exact lists", *(f"budget {most}" for most in (50, 200, 1000)), "each 50"):
        table.add_column(column, justify="right")
    for row in simulated["rows"]:
        budget, each = row["recall_at_10"]["budget"], row["recall_at_10"]["each"]
        figures = [f"{budget[str(most)]:.3f}" for most in (50, 200, 1000)]
        identical = f"{row['exact_lists_identical']:.0%}"
        table.add_row(row["sharded"], str(row["shards"]), identical, *figures, f"{each['50']:.3f}")
    console.print(table)
    growing = Table(title="One shard, more and more items: recall@10 by candidates")
    for column in ("items", *map(str, CANDIDATES)):
        growing.add_column(column, justify="right")
    for row in simulated["growth"]:
        growing.add_row(f"{row['items']:,}", *(f"{row['recall_at_10'][str(most)]:.3f}" for most in CANDIDATES))
    console.print(growing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=48_000)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--only", choices=["plans"], help="keep the last simulation")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    results = json.loads(arguments.out.read_text()) if arguments.only and arguments.out.exists() else {}
    if not arguments.only:
        log = Console(stderr=True)
        results["simulated"] = [simulate(arguments.items, arguments.queries, spread, log) for spread in SPREADS]
        for one in results["simulated"]:
            show(one, console)
    results |= {"similarity": SIMILARITY, "assumed": ASSUMED, "plans": plans()}
    console.print_json(data=results["plans"])
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
