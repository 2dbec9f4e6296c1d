"""A checkpoint that a paper's authors released, as a model of polysem's: VSE∞, VSE+2AD, DivE, label-wise sharing.

    python examples/import_checkpoint.py model_best.pth --from vse-infty --vocabulary f30k_precomp_vocab.json

`polysem import` does the same from the command line. Nothing in the file is executed: it is read as tensors and plain
values, or refused. The embeddings equal those of the released code on unpadded batches; `variant="official"` equals it
on any batch, with padding let in where the released code lets it in.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import polysem
from polysem.models import import_checkpoint


def bring_in(checkpoint: Path, source: str, out: Path, vocabulary: Path | None = None) -> polysem.Model:
    model = import_checkpoint(checkpoint, source, vocabulary)
    origin = model.provenance["imported"]
    print(f"{checkpoint.name}: {source}, sets of {model.set_sizes}, width {model.dim}; it says: {origin['recorded']}")
    model.save(out)
    return polysem.load(out)


def try_it(model: polysem.Model) -> torch.Tensor:
    """Models of region features take a (regions, dim) array per image; without a vocabulary, word ids per text."""
    width = model.image.encoder.config["input_dim"]
    regions = [torch.randn(36, width), torch.randn(20, width)]
    ready = getattr(model.text.encoder, "vocabulary", None) is not None
    texts = model.encode_texts(["a man with a red hat", "two dogs"] if ready else [[1, 4, 5, 2], [1, 6, 2]])
    scores = model.similarity(model.encode_images(regions), texts)
    print(f"Scores of two images and two texts:\n{scores}")
    return scores


def main(arguments: list[str] | None = None) -> torch.Tensor:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--from", dest="source", required=True, help="vse-infty, vse-2ad, dive or labelwise")
    parser.add_argument("--vocabulary", type=Path, help="JSON of a BiGRU's words, to encode sentences")
    parser.add_argument("--out", type=Path, default=Path("imported"))
    given = parser.parse_args(arguments)
    return try_it(bring_in(given.checkpoint, given.source, given.out, given.vocabulary))


if __name__ == "__main__":
    main()
