"""t-SNE of a map: ours against scikit-learn's, time and neighbourhood preservation.

    python benchmarks/map_tsne.py 2000 10000 20000

Points are made up like those of a map: unit vectors of 256 dimensions in clusters of items, each item with a few
elements. Both start from the same principal components, with perplexity 30, on the number of threads that torch has.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from sklearn.manifold import TSNE, trustworthiness

from polysem.inspection.map.layout import project
from polysem.inspection.map.tsne import PERPLEXITY, run_tsne

DIM, CLUSTERS, ELEMENTS = 256, 60, 8
SAMPLE = 4000
"""Points at most that trustworthiness is measured on: it sorts all pairs."""


def make_points(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLUSTERS, DIM, generator=generator)
    items = centres[torch.randint(CLUSTERS, (count // ELEMENTS,), generator=generator)]
    items = items + 0.8 * torch.randn(items.shape, generator=generator)
    points = items.repeat_interleave(ELEMENTS, 0)
    return torch.nn.functional.normalize(points + 0.6 * torch.randn(points.shape, generator=generator), dim=-1)


def lay_out_ours(points: torch.Tensor) -> np.ndarray:
    return run_tsne(points, start=points[:, :2]).numpy()


def lay_out_sklearn(points: torch.Tensor) -> np.ndarray:
    start = (points[:, :2] / points[:, 0].std() * 1e-4).numpy()
    return TSNE(perplexity=PERPLEXITY, init=start, n_jobs=torch.get_num_threads()).fit_transform(points.numpy())


def measure_quality(points: np.ndarray, layout: np.ndarray) -> tuple[float, float]:
    """Trustworthiness, and the share of the ten nearest neighbours that stay among the ten nearest."""
    chosen = np.random.default_rng(0).permutation(len(points))[:SAMPLE]
    points, layout = points[chosen], layout[chosen]
    near = [_ten_nearest(x) for x in (points, layout)]
    kept = np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(*near, strict=True)])
    return float(trustworthiness(points, layout, n_neighbors=10)), float(kept)


def _ten_nearest(points: np.ndarray) -> np.ndarray:
    squares = torch.cdist(torch.from_numpy(points).float(), torch.from_numpy(points).float())
    return squares.fill_diagonal_(float("inf")).topk(10, largest=False).indices.numpy()


def main(sizes: list[int]) -> None:
    print(f"{'points':>7} {'by':14} {'seconds':>8} {'cpu s':>8} {'trust':>7} {'kept':>6}")
    for size in sizes:
        points = make_points(size)
        principal, _ = project(points)
        for name, lay_out in {"polysem": lay_out_ours, "scikit-learn": lay_out_sklearn}.items():
            wall, cpu = time.perf_counter(), time.process_time()
            layout = lay_out(principal)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            trust, kept = measure_quality(points.numpy(), layout)
            print(f"{size:7,} {name:14} {wall:8.1f} {cpu:8.1f} {trust:7.3f} {kept:6.3f}", flush=True)


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [2000, 10_000, 20_000])
