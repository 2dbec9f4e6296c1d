"""Makes the model polysem/photo-small: extracts features, trains its members, joins and measures them.

Photographs and captions of two Karpathy collections are learned from: the train split of Flickr8k, and all of a part of
COCO. Flickr8k's val split picks each member's weights and is what is reported; its test split is never opened.
Stopped at any moment, the same command goes on.

    python benchmarks/photo_small.py --flickr8k flickr8k --coco coco --out runs/photo-small

The joined model is in --out/model, saved small; the figures are in benchmarks/results/photo-small.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from photo_data import FIGURES, measure, merge

from polysem import recipes
from polysem.data import open_collection
from polysem.encoders import build, extract, extract_texts
from polysem.models import join, load
from polysem.training import train

RESULTS = Path(__file__).parent / "results" / "photo-small.json"
RECIPE = "photo-small"
SUMMARY = "Photographs and English sentences in one space, on a CPU: an ensemble of three models with one vector each."
CARD = """
## What it was trained on

The train split of Flickr8k (6,000 photographs) and 4,586 photographs of MS COCO's training set, with five captions
each. The image networks (EfficientNet-Lite 1 and 2, trained on ImageNet) and the text network (all-MiniLM-L6-v2)
stay as their packages have them; only the heads were trained, {members} times from other seeds, and joined to sets.
Flickr8k's val split chose the settings and the weights, so the figures above flatter a little; its test split was not
used.

## Licence

The weights in this folder are released with polysem, Apache-2.0. They were learned from photographs and captions that
are for research use: Flickr8k's photographs belong to their owners on Flickr, COCO's captions are CC BY 4.0. No picture
and no caption is in the weights' folder. If your use needs weights of another origin, train on your own captions:
`polysem train photo-small --data DATA --out runs/mine`.

## Limits

- English captions. It knows what captions of everyday photographs speak of: people, dogs, sports, streets, food.
- It does not read text in pictures, knows no names of people or places, counts badly, and takes little notice of word
  order: "a dog chases a man" and "a man chases a dog" are nearly the same to it.
- It sees a picture at 288 × 288 pixels, squeezed to a square: small things are missed.
- Flickr8k's and COCO's photographs and annotators are mostly from North America and Europe, and so are their habits of
  naming people's sex, age and origin from looks. Do not use its scores to sort or judge people.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flickr8k", type=Path, required=True, help="train to learn from, val to choose by")
    parser.add_argument("--coco", type=Path, required=True, help="all to learn from")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--member", type=int, help="train this one alone: several processes may share the work")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="a setting of the recipe")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()

    data = open_collection(merge(given.flickr8k, [given.coco], given.out / "data"))
    recipe = recipes.load(RECIPE, given.settings)
    stores = {"features": given.out / "features", "text_features": given.out / "text-features"}
    extract(data, build(**recipe.image.encoder), stores["features"])
    extract_texts(data, build(**recipe.text.encoder), stores["text_features"])
    chosen = range(given.members) if given.member is None else [given.member]
    for seed in chosen:
        own = recipes.load(RECIPE, [*given.settings, f"training.seed={seed}"])
        train(own, data, given.out / f"member-{seed}", tracker=None, **stores)
    if given.member is not None:
        return
    members = [load(given.out / f"member-{seed}") for seed in range(given.members)]
    found = {f"member {seed}": measure(model, data, **stores) for seed, model in enumerate(members)}
    joined = join(members)
    found["joined"] = measure(joined, data, **stores)
    joined.provenance["recipe"] = {"name": "polysem/photo-small", "summary": SUMMARY}
    joined.provenance["validation"] = {name: found["joined"][name] for name in (*FIGURES, "protocol")}
    folder = joined.save(given.out / "model", {"license": "apache-2.0", "language": "en"}, small=True)
    card = folder / "README.md"
    card.write_text(card.read_text(encoding="utf-8") + CARD.format(members=given.members), encoding="utf-8")
    small = load(given.out / "model")
    found["joined, saved small"] = measure(small, data, **stores)
    given.output.write_text(json.dumps({"settings": given.settings, "models": found}, indent=1) + "\n")
    for name, figures in found.items():
        print(f"{name:20} RSUM {figures['rsum']:.1f}  " + "  ".join(f"{figures[key]:.1f}" for key in FIGURES[1:]))


if __name__ == "__main__":
    main()
