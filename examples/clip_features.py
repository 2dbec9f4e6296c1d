"""CLIP's or SigLIP's patches as frozen local features under a set model.

    python examples/clip_features.py --data photos --model openai/clip-vit-base-patch32
    python examples/clip_features.py --data photos --model ./siglip-base-patch16-224     # a folder of your own
    python examples/clip_features.py --tiny

CLIP compares one vector per picture. Here its patches, one vector for each part of the picture, are extracted once into
a feature store, and DivE's slots learn which of them belong together. The checkpoint is read by transformers: a folder
made by `save_pretrained()`, or a name on the hub; of a checkpoint with two towers the vision tower alone is used.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import tiny

import polysem
from polysem import recipes
from polysem.evaluation import evaluate
from polysem.training import train


def look(model: str) -> polysem.encoders.Encoder:
    """What the checkpoint gives for a picture."""
    encoder = polysem.encoders.build("patch", model=model, trainable="none").eval()
    print(f"{model}: {encoder.tokens_per_item} patches of width {encoder.dim} at {encoder.image_size} pixels")
    return encoder


def run(model: str, data: Path, out: Path, settings: list[str]) -> float:
    look(model)
    chosen = ["image.encoder.name=patch", f"image.encoder.model={model}", "image.encoder.trainable=none"]
    recipe = recipes.load("small-dive", [*chosen, *settings])
    # The features are made first and kept: `features` says where, and another recipe can start from them.
    train(recipe, data, out, features=out.parent / "clip-features", tracker=None)
    found = evaluate(out, data, protocol="pairs")
    print(f"RSUM {found.metrics['rsum']:.1f}, measured as: {found.stamp}")
    return float(found.metrics["rsum"])


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of pictures with captions.csv")
    parser.add_argument("--model", default="openai/clip-vit-base-patch32", help="folder, or name on the hub")
    parser.add_argument("--out", type=Path, default=Path("runs/clip"))
    parser.add_argument("--tiny", action="store_true", help="stand-ins for data and weights")
    parser.add_argument("--family", choices=["clip", "siglip"], default="clip", help="of the stand-in")
    given = parser.parse_args(arguments)
    if not given.tiny and given.data is None:
        parser.error("give --data FOLDER, or --tiny")
    if not given.tiny:
        return run(given.model, given.data, given.out, [])
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        settings = [setting for setting in tiny.settings(place) if not setting.startswith("image.encoder")]
        small = ["image.sets.heads=2", "image.sets.head_dim=8", "text.sets.heads=2", "text.sets.head_dim=8"]
        model = tiny.clip(place / given.family, given.family)
        return run(model, tiny.pictures(place / "pictures"), place / "run", [*settings, *small])


if __name__ == "__main__":
    main()
