"""A pooling of one's own: one class, one name, and every recipe can ask for it.

    python examples/new_pooling.py OUT

makes a little data set in OUT, trains VSE∞ on it with the new pooling in place of GPO, and prints what came of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

import polysem
from polysem import recipes
from polysem.pooling.base import Pooling, registry
from polysem.training import train


# --8<-- [start:pooling]
@registry.register("logmeanexp")
class LogMeanExp(Pooling):
    """Between the mean and the maximum, as far as one learned number says.

    v = ln(mean(e^(a x))) / a. Near a = 0 that is the mean, for a large a the maximum.
    """

    def __init__(self, dim: PositiveInt | None = None, start: PositiveFloat = 1.0):
        super().__init__(dim)
        self.log_a = nn.Parameter(torch.tensor(start).log())

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, N, D) with zeros at padding, (B, N) bool -> (B, D)."""
        a = self.log_a.exp()
        real = (a * x).masked_fill(~mask[..., None], float("-inf"))
        lengths = mask.sum(1, keepdim=True)
        return (real.logsumexp(1) - lengths.log()) / a


# --8<-- [end:pooling]


# --8<-- [start:alone]
def check_alone() -> None:
    """It is found by name, padding is nothing to it, and it can be built again."""
    pooling = polysem.pooling.build("logmeanexp", dim=8, start=2.0)
    long, short = torch.randn(5, 8), torch.randn(2, 8)
    together = pooling(polysem.LocalFeatures.from_list([long, short]))
    alone = pooling(polysem.LocalFeatures.from_list([short]))
    torch.testing.assert_close(together[1:], alone)

    again = polysem.pooling.build(**pooling.config)
    print(f"built from {dict(again.config)}")


# --8<-- [end:alone]

WORDS = ("red", "blue", "green", "small", "large", "old", "dog", "cat", "tree", "car", "boat", "house")


def make_data(folder: Path, seed: int = 0) -> Path:
    """Images of 7 regions whose features depend on 4 words, and captions of those words, laid out as SCAN's files."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    meanings = rng.normal(size=(len(WORDS), 10)).astype(np.float32)
    for split, images in (("train", 96), ("dev", 16)):
        shown = [rng.choice(len(WORDS), 4, replace=False) for _ in range(images)]
        regions = [meanings[rng.choice(words, 7)] + 0.1 * rng.normal(size=(7, 10)) for words in shown]
        captions = [" ".join(WORDS[w] for w in rng.permutation(words)[:3]) for words in shown for _ in range(5)]
        np.save(folder / f"{split}_ims.npy", np.stack(regions).astype(np.float32))
        (folder / f"{split}_caps.txt").write_text("\n".join(captions) + "\n", encoding="utf-8")
        ids = (f"{split}-{number}" for number in range(images))
        (folder / f"{split}_ids.txt").write_text("\n".join(ids) + "\n", encoding="utf-8")
    return folder


# --8<-- [start:train]
def train_with_it(data: Path, out: Path) -> polysem.Model:
    """VSE∞ as the paper has it, but for the pooling, and smaller."""
    recipe = recipes.load(
        "vse-infty",
        [
            "image.sets.pooling=logmeanexp",
            "text.sets.pooling=logmeanexp",
            "image.sets.knobs={start: 2.0}",
            "dim=32",
            "text.encoder.word_dim=16",
            "data.min_count=1",
            "training.batch=16",
            "training.epochs=5",
        ],
    )
    result = train(recipe, data, out, tracker=None)
    if result.best is not None:
        print(f"RSUM {result.best['rsum']:.1f} [{result.protocol}]")
    return polysem.load(out)


# --8<-- [end:train]


def main(out: Path) -> None:
    torch.manual_seed(0)
    check_alone()
    model = train_with_it(make_data(out / "data"), out / "run")
    learned = model.image.sets.pooling.log_a.exp().item()
    print(f"the images' a went from 2 to {learned:.2f}")
    texts = model.encode_texts(["small red dog", "old house"])
    print(f"a text is a set of shape {tuple(texts.shape[1:])}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "new-pooling"))
