"""t-SNE (van der Maaten and Hinton, 2008) in time linear in the number of points.

Points attract their neighbours, P, and repel each other, Q. The repulsion is a field that all points make together: it
is laid on a grid and convolved there with the kernel (as Linderman et al. and Pezzotti et al. do, 2018), so that no
pair is ever looked at.

Why not scikit-learn's: `benchmarks/map_tsne.py` on two busy cores, points of 256 dimensions in clusters; seconds of
processor time, and the share of each point's ten nearest neighbours that stay:

    points    ours          scikit-learn (Barnes-Hut)
     2,000     2.4  0.779     33.9  0.781
    10,000     8.6  0.421     77.0  0.424
    20,000    15.3  0.318    132.3  0.317
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from polysem import cpu_blocks
from polysem.progress import Progress

PERPLEXITY = 30.0
ITERATIONS = 500
EXAGGERATED = 200
"""The first iterations, in which neighbours attract each other so much more that clusters find together."""
EXAGGERATION = 12.0

_CELL = 0.3
"""Side of a grid cell. The kernel 1 / (1 + d²) is smooth on this scale: forces come out within a few per cent."""
_HALVINGS = 40
_GRIDS = (64, 128, 192, 256, 384)
"""Cells along a side: as many as the map is wide. Smaller maps get smaller cells, and larger maps larger ones."""


def run_tsne(
    points: Tensor,
    *,
    start: Tensor,
    perplexity: float = PERPLEXITY,
    iterations: int = ITERATIONS,
    progress: Progress | None = None,
) -> Tensor:
    """(n, d) -> (n, 2). The same points and start give the same map.

    Args:
        start: (n, 2) a first layout, such as the first two principal components; its scale does not matter.
        progress: called with the stage "t-SNE", the iterations done and their total.
    """
    n = len(points)
    perplexity = min(perplexity, (n - 1) / 3)
    if perplexity < 1:  # too few to have neighbours
        return start.float().clone()
    # On one thread: a thousand small steps, at each of which torch's threads would wait for one another.
    pool = cpu_blocks.single_threaded_pool(1)
    try:
        return pool.submit(_optimise, points.float(), start.float(), perplexity, iterations, progress).result()
    finally:
        pool.shutdown()


def _optimise(points: Tensor, start: Tensor, perplexity: float, iterations: int, progress: Progress | None) -> Tensor:
    n = len(points)
    neighbours, squares = find_neighbours(points, min(n - 1, round(3 * perplexity)))
    weights = affinities(squares, perplexity) / n
    layout = 1e-4 * start / start.std(0).amax().clamp(min=1e-12)
    # At least 50 is customary; a handful of points would fly apart.
    step = max(min(50.0, n / 4), n / EXAGGERATION / 4)
    velocity, gains = torch.zeros_like(layout), torch.ones_like(layout)
    repulsion = _Repulsion()
    for iteration in range(iterations):
        early = iteration < EXAGGERATED
        attraction = _attraction(layout, neighbours, weights)
        gradient = 4 * ((EXAGGERATION if early else 1.0) * attraction - repulsion(layout))
        gains = torch.where(velocity * gradient < 0, gains + 0.2, gains * 0.8).clamp_(min=0.01)
        velocity = (0.5 if early else 0.8) * velocity - step * gains * gradient
        layout = layout + velocity
        layout = layout - layout.mean(0)
        if progress is not None:
            progress("t-SNE", iteration + 1, iterations)
    return layout


def find_neighbours(points: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(n, d) -> the positions (n, k) of the k nearest other points, and their squared distances (n, k)."""
    from sklearn.neighbors import NearestNeighbors

    distances, neighbours = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(points.numpy()).kneighbors()
    return torch.from_numpy(neighbours.astype(np.int64)), torch.from_numpy(distances.astype(np.float32)).square()


def affinities(squares: Tensor, perplexity: float) -> Tensor:
    """(n, k) squared distances -> (n, k) weights that sum to 1 in each row: p = softmax(-d² / 2σ²), with the σ of each
    point such that its weights count as `perplexity` neighbours, exp(entropy)."""
    squares = squares.double()
    squares = squares - squares.amin(1, keepdim=True)
    target = torch.tensor(perplexity, dtype=torch.float64).log()
    # Beyond the largest, all weight is on the nearest; under the smallest, it is spread evenly.
    scale = squares.mean(1, keepdim=True).clamp(min=1e-30)
    low, high = torch.full_like(scale, -20.0), torch.full_like(scale, 20.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        weights = (-squares / scale * middle.exp()).softmax(1)
        entropy = -(weights * weights.clamp(min=1e-300).log()).sum(1, keepdim=True)
        sharp = entropy < target
        low, high = torch.where(sharp, low, middle), torch.where(sharp, middle, high)
    return weights.float()


def _attraction(layout: Tensor, neighbours: Tensor, weights: Tensor) -> Tensor:
    """(n, 2): sum over j of p_ij q_ij (y_i - y_j), with p symmetric: half of it is i's own neighbours, half those that
    count i among theirs."""
    plane = torch.view_as_complex(layout.contiguous())  # one number for both axes: half the memory accesses
    difference = plane[:, None] - plane[neighbours]
    pull = difference * (weights / (1 + difference.real.square() + difference.imag.square()))
    theirs = torch.zeros_like(plane).index_add_(0, neighbours.flatten(), pull.flatten())
    return torch.view_as_real((pull.sum(1) - theirs) / 2)


class _Repulsion:
    """The repulsion: sum over j of q_ij² (y_i - y_j) / Z, Z the sum of all q; q_ij = 1 / (1 + |y_i - y_j|²)."""

    def __init__(self) -> None:
        self.shape, self.cell = 0, 0.0
        self.kernels = torch.empty(0)

    def __call__(self, layout: Tensor) -> Tensor:
        low = layout.amin(0)
        width = float((layout.amax(0) - low).amax())
        wanted = width / _CELL + 2
        cells = next((each for each in _GRIDS if each >= wanted), _GRIDS[-1])
        # In steps, so that the kernels are seldom made again.
        growth = math.log(max(width, 1e-6) / (cells - 2) / _CELL, 1.1)
        cell = _CELL * 1.1 ** math.ceil(growth) if cells in (_GRIDS[0], _GRIDS[-1]) else _CELL
        if (cells, cell) != (self.shape, self.cell):
            # The spectra of q and of both components of q² (y_i - y_j), on a grid twice as large: nothing wraps round.
            self.shape, self.cell = cells, cell
            along = torch.fft.fftfreq(2 * cells, d=1 / (2 * cells)) * cell
            q = 1 / (1 + along[:, None].square() + along[None, :].square())
            self.kernels = torch.fft.rfft2(torch.stack([q, q.square() * along[:, None], q.square() * along[None, :]]))
        position = (layout - low) / cell
        base = position.floor().clamp_(max=cells - 2)
        far = position - base
        flat = (base[:, 0] * cells + base[:, 1]).long()
        corners = torch.stack([flat, flat + 1, flat + cells, flat + cells + 1])
        x, y = far[:, 0], far[:, 1]
        shares = torch.stack([(1 - x) * (1 - y), (1 - x) * y, x * (1 - y), x * y])
        mass = torch.zeros(cells * cells).index_add_(0, corners.flatten(), shares.flatten())
        spectrum = torch.fft.rfft2(mass.view(cells, cells), s=(2 * cells, 2 * cells))
        fields = torch.fft.irfft2(self.kernels * spectrum, s=(2 * cells, 2 * cells))[:, :cells, :cells]
        values = (fields.reshape(3, -1)[:, corners] * shares).sum(1)
        # Without each point's closeness to itself, as the grid sees it: less than 1 between the grid's points.
        beside, across = 1 / (1 + cell**2), 1 / (1 + 2 * cell**2)
        a, b, c, d = shares
        itself = shares.square().sum(0) + 2 * beside * (a + d) * (b + c) + 2 * across * (a * d + b * c)
        total = (values[0] - itself).double().sum().clamp(min=1e-12)
        repulsion: Tensor = values[1:].t() / total.float()
        return repulsion
