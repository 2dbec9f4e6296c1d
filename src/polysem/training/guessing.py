"""The heads that guess hidden tokens. No embedding depends on them: they train beside the model and stay behind."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polysem import distributed
from polysem.encoders.region import xavier_linear
from polysem.models.tower import Hidden
from polysem.objectives import Loss
from polysem.objectives.masked_modelling import region_terms, word_terms
from polysem.training.blanks import Blanks


class Guessing(nn.Module):
    """From the states of hidden tokens: which word stood there, and which of the batch's hidden regions.

    variant "official": regions are asked for and not hidden, and words guessed with a softmax of sigmoids.
    """

    def __init__(self, widths: tuple[int, int], words: int, region_dim: int, variant: str = "paper") -> None:
        """widths: of the states of images and of texts. words: how many there are to choose from."""
        super().__init__()
        self.variant = variant
        self.image_mask, self.text_mask = (nn.Parameter(0.02 * torch.randn(width)) for width in widths)
        self.words, self.regions = xavier_linear(widths[1], words), xavier_linear(widths[0], region_dim)

    def hidden(self, blanks: Blanks | None) -> tuple[Hidden | None, Hidden | None]:
        """What the towers hide. A word that was replaced before its encoder needs no more hiding."""
        if blanks is None:
            return None, None
        images = None if self.variant == "official" else Hidden(blanks.images, self.image_mask)
        return images, None if blanks.replaced else Hidden(blanks.texts, self.text_mask)

    def forward(self, images: Tensor, texts: Tensor, blanks: Blanks) -> Loss:
        """images, texts: (B, N, D), the states of this process's tokens."""
        words = word_terms(self.words(texts[blanks.texts]), blanks.words[blanks.texts], self.variant)
        regions = region_terms(self.regions(images[blanks.images]), blanks.regions[blanks.images].to(images))
        parts = {"words": _mean_of_all(words), "regions": _mean_of_all(regions)}
        return Loss(parts["words"] + parts["regions"], parts)


def _mean_of_all(terms: Tensor) -> Tensor:
    """The share of this process in the mean over all processes; 0 where nothing was hidden."""
    count = distributed.all_reduce(torch.tensor(float(len(terms)), device=terms.device))
    return terms.sum() / count.clamp(min=1)
