"""Makes the model polysem/photo-base: features, members, their distillation into one, sets around its vector.

Photographs and captions of Karpathy collections are learned from: the train split of Flickr8k, and all of the COCO
folders. Flickr8k's val split picks weights and is what is reported; test splits are never opened. Stopped at any
moment, the same command goes on, from the step it was at.

    polysem weights get dinov2-small
    python benchmarks/photo_base.py --flickr8k flickr8k --coco coco-1 coco-2 --out runs/photo-base

1. Features of frozen DINOv2-small, averaged to 4 x 4 cells, and of MiniLM's words, once.
2. Members: the recipe photo-base from several seeds, one vector each. The teacher: the members joined.
3. The single: the first member trained further with the last two layers of MiniLM, half of its loss from the teacher.
4. The set: `polysem grow`, elements that compete for the cells around the single's vector, which stays as it is.
5. Both read all 16 x 16 patches instead of the cells, are measured on val, and the set is saved small in --out/model.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, cast

from photo_data import FIGURES, measure, merge

from polysem import recipes
from polysem.data import open_collection
from polysem.encoders import PixelEncoder, TextEncoder, build, extract, extract_texts
from polysem.models import Model, join, load
from polysem.models import build as build_model
from polysem.training import train
from polysem.training.start import finetune_recipe, grow_recipe

RESULTS = Path(__file__).parent / "results" / "photo-base.json"
RECIPE, NAME = "photo-base", "polysem/photo-base"
FURTHER = (
    "text.encoder.trainable=2",
    "text.encoder.lr_scale=0.06",
    "optimiser={name: adamw, lr: 5e-4, weight_decay: 0.05, clip: 2.0}",
    "objective={name: infonce, temperature: 0.05}",
    "schedule={name: cosine, warmup_steps: 50}",
    "training={epochs: 2, batch: 256, captions: one}",
)
"""How a member is trained further, with its text encoder."""


WITHIN = 1.0
"""RSUM that a set may lie behind the single vector it was grown around, and still be shipped."""
CARD = """
## A set or one vector

{choice}

## What it was trained on

The train split of Flickr8k (6,000 photographs, five captions each) and 20,586 photographs of MS COCO's training set
(4,586 with five captions, 16,000 with one). DINOv2-small stays as it is and is not in this folder: `polysem weights
get dinov2-small` fetches it. The heads and the last two of the six layers of all-MiniLM-L6-v2 were trained; the
other layers come with the extra `offline`. {members} models of one vector each were trained from other seeds and
taught the last one. Flickr8k's val split chose the weights, so the figures above flatter a little; no test split
was used.

## Licence

The weights in this folder are released with polysem, Apache-2.0; DINOv2 is Apache-2.0 too. They were learned from
photographs and captions that are for research use: Flickr8k's photographs belong to their owners on Flickr, COCO's
captions are CC BY 4.0. No picture and no caption is in the weights' folder. If your use needs weights of another
origin, train on your own captions: `polysem train photo-base --data DATA --out runs/mine`.

## Limits

- English captions. It knows what captions of everyday photographs speak of: people, dogs, sports, streets, food.
- It does not read text in pictures, knows no names of people or places, counts badly, and takes little notice of word
  order: "a dog chases a man" and "a man chases a dog" are nearly the same to it.
- It sees a picture at 224 × 224 pixels, squeezed to a square: small things are missed.
- Flickr8k's and COCO's photographs and annotators are mostly from North America and Europe, and so are their habits of
  naming people's sex, age and origin from looks. Do not use its scores to sort or judge people.
"""


def read_every_patch(model: Model) -> Model:
    """The same heads over all patches of a picture in place of the means of cells: they have no weights of places."""
    config = model.config
    encoder = {**config["image"]["encoder"], "grid": None, "pretrained": True}
    text = {**config["text"], "encoder": {**config["text"]["encoder"], "pretrained": True}}
    finer = build_model(**{**config, "image": {**config["image"], "encoder": encoder}, "text": text})
    finer.load_state_dict(model.state_dict(), strict=False)
    finer.provenance = model.provenance
    return finer.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flickr8k", type=Path, required=True, help="train to learn from, val to choose by")
    parser.add_argument("--coco", type=Path, nargs="+", required=True, help="folders of which all is to learn from")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--members", type=int, default=2, help="that teach")
    parser.add_argument("--k", type=int, default=8, help="elements of an image's set")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="a setting of the recipe")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()

    data = open_collection(merge(given.flickr8k, given.coco, given.out / "data"))
    recipe = recipes.load(RECIPE, given.settings)
    stores = {"features": given.out / "features", "text_features": given.out / "text-features"}
    extract(data, cast(PixelEncoder, build(**recipe.image.encoder)), stores["features"])
    extract_texts(data, cast(TextEncoder, build(**recipe.text.encoder)), stores["text_features"])
    folders = [given.out / f"member-{seed}" for seed in range(given.members)]
    for seed, folder in enumerate(folders):
        train(recipes.load(RECIPE, [*given.settings, f"training.seed={seed}"]), data, folder, tracker=None, **stores)
    members = [load(folder) for folder in folders]
    found: dict[str, Any] = {f"member {seed}": measure(model, data, **stores) for seed, model in enumerate(members)}
    joined = join(members)
    found["members joined"] = measure(joined, data, **stores)
    joined.save(given.out / "teacher")
    taught = f"teacher={{model: {given.out / 'teacher'}, text_features: {stores['text_features']}}}"
    further = finetune_recipe(members[0], str(folders[0]), [*FURTHER, taught])
    train(further, data, given.out / "single", features=stores["features"], tracker=None)
    single = load(given.out / "single")
    stores["text_features"] = given.out / "single-text-features"
    extract_texts(data, cast(TextEncoder, single.text.encoder), stores["text_features"])
    found["single"] = measure(single, data, **stores)
    # Without weights of places, so that the elements can read any grid.
    grown = grow_recipe(single, str(given.out / "single"), given.k, overrides=["image.sets.cells=null"])
    train(grown, data, given.out / "set", tracker=None, **stores)
    found["set"] = measure(load(given.out / "set"), data, **stores)

    val = data.split("val")
    every = read_every_patch(single)
    patches = given.out / "val-patches"
    extract(val, cast(PixelEncoder, every.image.encoder), patches)
    finer = {"features": patches, "text_features": stores["text_features"]}
    found["single, every patch"] = measure(every, val, **finer)
    grown_set = read_every_patch(load(given.out / "set"))
    found["set, every patch"] = measure(grown_set, val, **finer)
    rsums = {kind: found[f"{kind}, every patch"]["rsum"] for kind in ("single", "set")}
    as_set = rsums["set"] >= rsums["single"] - WITHIN
    model = grown_set if as_set else every
    kind = f"set of {given.k} vectors" if as_set else "single vector"
    choice = (
        f"A picture is a {kind}. On Flickr8k val the set has an RSUM of {rsums['set']:.1f}, the single vector that "
        f"it was grown around {rsums['single']:.1f}. The set is taken where it is not behind by more than "
        f"{WITHIN:.0f}, for its explanations and for queries that name one thing among several."
    )
    summary = "Photographs and English sentences in one space, over DINOv2-small and MiniLM."
    model.provenance["recipe"] = {**model.provenance.get("recipe", {}), "name": NAME, "summary": summary}
    model.provenance["validation"] = found[f"{'set' if as_set else 'single'}, every patch"]
    folder = model.save(given.out / "model", {"license": "apache-2.0", "language": "en"}, small=True)
    card, told = folder / "README.md", CARD.format(choice=choice, members=given.members)
    card.write_text(card.read_text(encoding="utf-8") + told, encoding="utf-8")
    found["saved small"] = measure(load(folder), val, **finer)
    given.output.write_text(json.dumps({"settings": given.settings, "models": found}, indent=1) + "\n")
    for name, figures in found.items():
        print(f"{name:32} RSUM {figures['rsum']:.1f}  " + "  ".join(f"{figures[key]:.1f}" for key in FIGURES[1:]))


if __name__ == "__main__":
    main()
