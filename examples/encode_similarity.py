"""polysem in code written for sentence-transformers: `encode`, `similarity`.

    python examples/encode_similarity.py --model runs/mine photo.jpg beach.jpg
    python examples/encode_similarity.py --tiny

Texts and pictures may stand in one list. A `str` is a text, a `Path` or a PIL image a picture. An embedding is a set of
K vectors of length 1, so the shape is (items, K, dim), with K = 1 for single-vector models; `similarity` knows how the
model was trained to compare them.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import tiny
from PIL import Image

import polysem


def compare(model: polysem.Model, pictures: list[Path]) -> list[str]:
    texts = ["a red circle", "a blue square"]
    mixed = model.encode([*texts, *pictures, Image.open(pictures[0])], batch_size=16)
    print(f"{len(mixed)} items, each {mixed.shape[1]} vectors of width {mixed.shape[2]}")

    scores = model.similarity(mixed[: len(texts)], mixed[len(texts) :])
    for text, row in zip(texts, scores, strict=True):
        print(f"{text}: " + ", ".join(f"{score:.3f}" for score in row))

    query = model.encode(["a red circle"], convert_to_tensor=True)
    found = model.similarity(query, model.encode(pictures, convert_to_tensor=True, show_progress_bar=True))[0]
    best = [pictures[place].name for place in found.argsort(descending=True)]
    print(f"best first: {', '.join(best)}")
    return best


def main(arguments: list[str] | None = None) -> list[str]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder, or its name")
    parser.add_argument("pictures", type=Path, nargs="*")
    parser.add_argument("--tiny", action="store_true", help="stand-ins for data and weights")
    given = parser.parse_args(arguments)
    if not given.tiny and not (given.model and given.pictures):
        parser.error("give --model and pictures, or --tiny")
    if not given.tiny:
        return compare(polysem.load(given.model), given.pictures)
    with tempfile.TemporaryDirectory() as folder:
        tiny.model(Path(folder)).save(Path(folder) / "model")
        pictures = sorted(tiny.pictures(Path(folder) / "pictures").glob("*-left.png"))[:4]
        return compare(polysem.load(Path(folder) / "model"), pictures)


if __name__ == "__main__":
    main()
