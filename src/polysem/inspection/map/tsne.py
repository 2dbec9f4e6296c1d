"""t-SNE (van der Maaten and Hinton, 2008) in time linear in the number of points.

Points attract their neighbours, P, and repel everybody, Q. The repulsion is a field that all points make together: it
is laid on a grid and convolved there with the kernel (as Linderman et al. and Pezzotti et al. do, 2018), so that no
pair is ever looked at. For 20,000 points that takes half a minute on one core; a tree code takes several times that.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from polysem.inspection.map.neighbours import affinities, nearest

Progress = Callable[[int, int], None]

PERPLEXITY = 30.0
ITERATIONS = 500
EXAGGERATED = 200
"""The first iterations, in which neighbours attract each other so much more that clusters find together."""
EXAGGERATION = 12.0

_CELL = 0.3
"""Side of a grid cell. The kernel 1 / (1 + d²) is smooth on this scale: forces come out within a few per cent."""
_GRIDS = (64, 128, 192, 256, 384)
"""Cells along a side: as many as the map is wide. Smaller maps get smaller cells, and larger maps larger ones."""


def tsne(
    points: Tensor,
    *,
    start: Tensor,
    perplexity: float = PERPLEXITY,
    iterations: int = ITERATIONS,
    progress: Progress | None = None,
) -> Tensor:
    """(n, d) -> (n, 2). start: (n, 2) a first layout, such as the first two principal components; its scale is of no
    matter. The same start gives the same map."""
    n = len(points)
    perplexity = min(perplexity, (n - 1) / 3)
    if perplexity < 1:  # too few to be anyone's neighbours
        return start.float().clone()
    places, squares = nearest(points.float(), min(n - 1, round(3 * perplexity)))
    weights = affinities(squares, perplexity) / n
    layout = 1e-4 * start.float() / start.float().std(0).amax().clamp(min=1e-12)
    # At least 50 is customary; a handful of points would fly apart.
    step = max(min(50.0, n / 4), n / EXAGGERATION / 4)
    velocity, gains = torch.zeros_like(layout), torch.ones_like(layout)
    field = _Field()
    for iteration in range(iterations):
        early = iteration < EXAGGERATED
        gradient = 4 * ((EXAGGERATION if early else 1.0) * _attraction(layout, places, weights) - field(layout))
        gains = torch.where(velocity * gradient < 0, gains + 0.2, gains * 0.8).clamp_(min=0.01)
        velocity = (0.5 if early else 0.8) * velocity - step * gains * gradient
        layout = layout + velocity
        layout = layout - layout.mean(0)
        if progress is not None:
            progress(iteration + 1, iterations)
    return layout


def _attraction(layout: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    """(n, 2): sum over j of p_ij q_ij (y_i - y_j), with p symmetric: half of it is i's own neighbours, half those that
    count i among theirs."""
    plane = torch.view_as_complex(layout.contiguous())  # one number for both axes: half the memory accesses
    difference = plane[:, None] - plane[places]
    pull = difference * (weights / (1 + difference.real.square() + difference.imag.square()))
    theirs = torch.zeros_like(plane).index_add_(0, places.flatten(), pull.flatten())
    return torch.view_as_real((pull.sum(1) - theirs) / 2)


class _Field:
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
            self._prepare(cells, cell)
        place = (layout - low) / cell
        base = place.floor().clamp_(max=cells - 2)
        far = place - base
        flat = (base[:, 0] * cells + base[:, 1]).long()
        corners = torch.stack([flat, flat + 1, flat + cells, flat + cells + 1])
        x, y = far[:, 0], far[:, 1]
        shares = torch.stack([(1 - x) * (1 - y), (1 - x) * y, x * (1 - y), x * y])
        mass = torch.zeros(cells * cells).index_add_(0, corners.flatten(), shares.flatten())
        spectrum = torch.fft.rfft2(mass.view(cells, cells), s=(2 * cells, 2 * cells))
        fields = torch.fft.irfft2(self.kernels * spectrum, s=(2 * cells, 2 * cells))[:, :cells, :cells]
        felt = (fields.reshape(3, -1)[:, corners] * shares).sum(1)
        # Without everybody's closeness to itself, as the grid sees it: it is less than 1 between the grid's points.
        beside, across = 1 / (1 + cell**2), 1 / (1 + 2 * cell**2)
        a, b, c, d = shares
        itself = shares.square().sum(0) + 2 * beside * (a + d) * (b + c) + 2 * across * (a * d + b * c)
        total = (felt[0] - itself).double().sum().clamp(min=1e-12)
        repulsion: Tensor = felt[1:].t() / total.float()
        return repulsion

    def _prepare(self, cells: int, cell: float) -> None:
        """The spectra of q and of both components of q² (y_i - y_j), on a grid twice as large: nothing wraps round."""
        self.shape, self.cell = cells, cell
        along = torch.fft.fftfreq(2 * cells, d=1 / (2 * cells)) * cell
        x, y = along[:, None], along[None, :]
        q = 1 / (1 + x.square() + y.square())
        self.kernels = torch.fft.rfft2(torch.stack([q, q.square() * x, q.square() * y]))
