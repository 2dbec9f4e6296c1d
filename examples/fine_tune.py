"""Fine-tune on your own images and captions, and measure the result the right way round: both ways, with all captions.

    python examples/fine_tune.py --data photos --out runs/mine     # needs: pip install 'polysem[offline]'
    python examples/fine_tune.py --tiny                            # stand-ins, a few seconds

`photos` is a folder of pictures with captions.csv: a row for each caption (columns image, caption and, if you like,
split: train, val, test). Write a picture's five captions as five rows of the same image.

The usual trap is the evaluation. Code for sentence pairs takes the k-th caption to be the only right answer to the k-th
image. With several captions per image the other captions of the same image then count as wrong, in training (as
negatives) and in the score. Here a caption belongs to its image: image to text succeeds with any of an image's
captions, text to image has one right answer, an image's own captions are never its negatives, and an image is in one
split with all of them.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import tiny

import polysem
from polysem import recipes
from polysem.evaluation import Evaluation, evaluate
from polysem.training import train

# The small recipes leave both pretrained encoders as they are and train what comes after them. Here the text encoder
# learns too, at a twentieth of the pace: it was pretrained, the rest begins at random.
FINE_TUNE = ["text.encoder.trainable=all", "text.encoder.lr_scale=0.05"]


def fine_tune(data: Path, out: Path, settings: list[str]) -> polysem.Model:
    recipe = recipes.load("small-vse-infty", [*FINE_TUNE, *settings])
    result = train(recipe, data, out, tracker=None)
    if result.best is not None:
        print(f"Best on validation: RSUM {result.best['rsum']:.1f} at step {result.best['step']}")
    return polysem.load(out)


def measure(model: polysem.Model, data: Path) -> Evaluation:
    """Recall both ways over the test split, or else what training held out; every figure with its protocol."""
    found = evaluate(model, data, protocol="pairs")
    for way, name in (("i2t", "Image to text"), ("t2i", "Text to image")):
        figures = found.metrics[way]
        shown = "  ".join(f"R@{k} {figures[f'r{k}']:5.1f}" for k in (1, 5, 10))
        low, high = found.intervals[f"{way}.r1"]
        print(f"{name}: {shown}   (R@1 is between {low:.1f} and {high:.1f}, 95 %)")
    print(f"RSUM {found.metrics['rsum']:.1f}, measured as: {found.stamp}")
    return found


def main(arguments: list[str] | None = None) -> Evaluation:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of pictures with captions.csv")
    parser.add_argument("--out", type=Path, default=Path("runs/mine"))
    parser.add_argument("--tiny", action="store_true", help="stand-ins for data and weights")
    given = parser.parse_args(arguments)
    if not given.tiny and given.data is None:
        parser.error("give --data FOLDER, or --tiny")
    if not given.tiny:
        return measure(fine_tune(given.data, given.out, []), given.data)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        data = tiny.pictures(place / "pictures")
        return measure(fine_tune(data, place / "run", tiny.settings(place)), data)


if __name__ == "__main__":
    main()
