"""Losses on the sets themselves, added with a small weight."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polysem import masked_ops
from polysem.objectives.base import Loss, Regulariser, registry
from polysem.similarity.base import distances

# Kernel entries held at once; a batch of 1,200 sets of four has 23 million.
_BLOCK = 1 << 22


@registry.register("mmd")
class MMD(Regulariser):
    """Maximum mean discrepancy: pulls the distribution of image elements onto that of text elements.

    E k(x, x') - 2 E k(x, y) + E k(y, y') over all elements, k = exp(-gamma |x - x'|) with the distance not squared and
    diagonals included, as PVSE and DivE compute it. DivE adds 0.01 of it.
    """

    def __init__(self, gamma: PositiveFloat = 0.5) -> None:
        super().__init__()
        self.gamma = gamma

    def loss(self, images: Tensor, texts: Tensor) -> Loss:
        x, y = images.flatten(0, 1), texts.flatten(0, 1)
        # Small differences of distances: half precision would leave nothing of them.
        with torch.autocast(x.device.type, enabled=False):
            # A point's distance to itself is 0 by definition, not by subtraction.
            within = [(self._sum_kernel(z, z, same=True).sum() + len(z)) / len(z) ** 2 for z in (x, y)]
            mmd = within[0] - 2 * self._sum_kernel(x, y).sum() / (len(x) * len(y)) + within[1]
        return Loss(mmd, {"mmd": mmd})

    def _sum_kernel(self, x: Tensor, y: Tensor, same: bool = False) -> Tensor:
        """Row sums of the kernel in blocks of rows; with `same`, without the diagonal."""
        rows = max(1, _BLOCK // len(y))

        def block(part: Tensor, others: Tensor, first: int) -> Tensor:
            kernel = torch.exp(-self.gamma * distances(part, others.t()))
            if same:
                own = torch.arange(len(part), device=part.device)
                kernel = kernel.index_put((own, own + first), kernel.new_zeros(()))
            return kernel.sum(1)

        if rows >= len(x):
            return block(x, y, 0)
        again = partial(checkpoint, block, use_reentrant=False, preserve_rng_state=False)
        return torch.cat([again(part, y, i * rows) for i, part in enumerate(x.split(rows))])


@registry.register("diversity")
class Diversity(Regulariser):
    """Pushes the elements of each set apart. Give it the residuals, so that the shared global feature stays free.

    form "uniformity" (DivE): mean over element pairs of exp(-t |r_i - r_j|^2).
    form "gram" (PVSE): Frobenius norm of the Gram matrix without its diagonal, divided by K^2.
    Elements are normalised first; images and texts are added; a set of one has nothing to spread and costs 0.
    """

    needs_sets = True

    def __init__(self, form: Literal["uniformity", "gram"] = "uniformity", t: PositiveFloat = 2.0) -> None:
        super().__init__()
        self.form, self.t = form, t

    def loss(self, images: Tensor, texts: Tensor) -> Loss:
        image, text = self._measure(images), self._measure(texts)
        return Loss(image + text, {"image": image, "text": text})

    def _measure(self, residual: Tensor) -> Tensor:
        k = residual.shape[1]
        if k == 1:
            return (residual * 0).sum()
        r = masked_ops.normalise(residual)
        gram = r @ r.transpose(1, 2)
        if self.form == "gram":
            off_diagonal = gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))
            norms: Tensor = torch.linalg.matrix_norm(off_diagonal)
            return (norms / k**2).mean()
        first, second = torch.triu_indices(k, k, offset=1, device=r.device)
        # Measured from the vectors: 2 - 2 cos would be wrong for a zero residual, which has no direction.
        squared = (r[:, first] - r[:, second]).square().sum(-1)
        return torch.exp(-self.t * squared).mean()
