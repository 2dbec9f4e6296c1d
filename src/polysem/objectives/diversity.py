from __future__ import annotations

from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from polysem import masked_ops
from polysem.objectives.base import Loss, Regulariser, registry


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
        image, text = self._spread(images), self._spread(texts)
        return Loss(image + text, {"image": image, "text": text})

    def _spread(self, residual: Tensor) -> Tensor:
        k = residual.shape[1]
        if k == 1:
            return (residual * 0).sum()
        r = masked_ops.unit(residual)
        gram = r @ r.transpose(1, 2)
        if self.form == "gram":
            off_diagonal = gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))
            norms: Tensor = torch.linalg.matrix_norm(off_diagonal)
            return (norms / k**2).mean()
        first, second = torch.triu_indices(k, k, offset=1, device=r.device)
        # Measured from the vectors: 2 - 2 cos would be wrong for a zero residual, which has no direction.
        squared = (r[:, first] - r[:, second]).square().sum(-1)
        return torch.exp(-self.t * squared).mean()
