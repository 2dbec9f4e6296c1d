"""Makes the model polysem/photo-base: features once, heads from coarse cells to fine patches, then a set around them.

Photographs and captions of Karpathy collections are learned from: the train split of Flickr8k, and all of the COCO
folders. Flickr8k's val split picks weights and is what is reported; test splits are never opened. Stopped at any
moment, the same command goes on, from the step it was at.

    polysem weights get dinov2-small
    python benchmarks/photo_base.py --flickr8k flickr8k --coco coco-1 coco-2 --out runs/photo-base

1. Features of frozen DINOv2-small, 16 x 16 patches (10 GB), and of MiniLM's words, once; means of 4 x 4, 8 x 8 cells.
2. The recipe photo-base on 4 x 4 cells, from each seed. Nothing in the heads knows a place, so they read any grid:
3. the best goes on with 8 x 8 cells, then with all patches: one vector.
4. A set is grown around it on Flickr8k and the first COCO folder: an element for each sixteenth of the picture, and the
   vector as it is. The set is saved small in --out/model; a K = 1 twin, grown alike, is there to compare with.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from photo_data import FIGURES, PARTS, measure, merge

from polysem import recipes
from polysem.data import Collection, open_collection
from polysem.data.store import FeatureStore, StoreEntry, StoreWriter
from polysem.encoders import Encoder, PixelEncoder, TextEncoder, build, extract, extract_texts
from polysem.models import load
from polysem.recipes import Recipe
from polysem.training import train
from polysem.training.start import grow_recipe

RESULTS = Path(__file__).parent / "results" / "photo-base.json"
RECIPE, NAME = "photo-base", "polysem/photo-base"
EARLIER = "an earlier stage"
"""What the saved model says of the folder that it started from, which is of this machine alone."""
STAGES = ((8, 3, "1e-3"), (None, 2, "7e-4"))
"""What follows the recipe: cells of a side (None for all patches), epochs and rate."""
GROWTH = (
    "image.sets.reads=384",
    "image.sets.gamma=0.5",
    "image.sets.dropout=0.2",
    "phrases={weight: 0.5}",
    "auxiliary=[{on: residual, weight: 0.5}]",
    "objective.temperature=0.05",
    "optimiser.lr=2e-3",
    "optimiser.weight_decay=0.05",
    "schedule.warmup_steps=30",
    "training={epochs: 2, batch: 256, captions: one}",
)
"""Of the elements: they read patches without the class token, and learn from captions and from phrases of these."""
LOCAL = ("image.sets.local=6.0", "image.sets.keep_global=true")
SETS = {"set": (16, LOCAL), "twin": (1, ("image.sets.cells=null",))}
"""How many elements are grown, and what sets them apart."""
CARD = """
## A set of {size}

A picture is {size} vectors: one of the whole picture, and one for each sixteenth of it (4 × 4), a step away from that
vector by what the patches there show. A text is one vector, and chooses among them.

| on Flickr8k val | vectors | RSUM | nouns, mAP | phrases, mAP |
|---|--:|--:|--:|--:|
| this model | {size} | {set[rsum]:.1f} | {set[nouns.map]:.1f} | {set[phrases.map]:.1f} |
| its K = 1 twin, grown alike | 1 | {one[rsum]:.1f} | {one[nouns.map]:.1f} | {one[phrases.map]:.1f} |
| the vector that both grew around | 1 | {base[rsum]:.1f} | {base[nouns.map]:.1f} | {base[phrases.map]:.1f} |

The rule was: a set if it is within 1 RSUM of its twin, for queries that name one thing of a picture, and because its
elements have places. Set and twin learned from phrases ("a dog") beside captions, the vector before them did not. The
price of a set: {size} × 512 numbers a picture.

## What it was trained on

The train split of Flickr8k (6,000 photographs, five captions each) and 20,586 photographs of MS COCO's training set
(4,586 with five captions, 16,000 with one). DINOv2-small stays as it is and is not in this folder: `polysem weights
get dinov2-small` fetches it. MiniLM (all-MiniLM-L6-v2) comes with the extra `offline`. Only the heads were trained.
The elements around the vector were trained on the photographs with five captions, and on phrases of these. Flickr8k's
val split chose settings and weights, so the figures above flatter a little; no test split was used.

## Licence

The weights in this folder are released with polysem, Apache-2.0; DINOv2 is Apache-2.0 too. They were learned from
photographs and captions that are for research use: Flickr8k's photographs belong to their owners on Flickr, COCO's
captions are CC BY 4.0. No picture and no caption is in the weights' folder. If your use needs weights of another
origin, train on your own captions: `polysem train photo-base --data DATA --out runs/mine`, then `polysem grow`.

## Limits

- English captions. It knows what captions of everyday photographs speak of: people, dogs, sports, streets, food.
- It does not read text in pictures, knows no names of people or places, counts badly, and takes little notice of word
  order: "a dog chases a man" and "a man chases a dog" are nearly the same to it.
- It sees a picture at 224 × 224 pixels, squeezed to a square: small things are missed.
- Flickr8k's and COCO's photographs and annotators are mostly from North America and Europe, and so are their habits of
  naming people's sex, age and origin from looks. Do not use its scores to sort or judge people.
"""


def average_cells(patches: FeatureStore, encoder: Encoder, out: Path) -> None:
    """The store that `encoder`, which averages patches to a grid of cells, would make: from the patches' own."""
    manifest = replace(patches.manifest, fingerprint=encoder.fingerprint(), encoder=encoder.config)
    average = encoder.get_buffer("average").numpy()
    with StoreWriter(out, manifest) as writer:
        missing = [key for key in patches.ids if key not in writer.done]
        for number, key in enumerate(missing, 1):
            writer.add([StoreEntry(key, average @ patches[key].astype(np.float32))])
            if number % 4096 == 0 or number == len(missing):
                writer.commit()


@dataclass
class Maker:
    """Trains the stages in folders of `out` and measures each on val.

    stores: of the image features, by the cells of a side; None is for all patches. words: of the captions' features.
    found: the figures of each stage, by its name.
    """

    data: Collection
    out: Path
    stores: dict[int | None, Path]
    words: Path
    found: dict[str, Any] = field(default_factory=dict)

    def run(self, name: str, recipe: Recipe, cells: int | None = None, data: Collection | None = None) -> Path:
        """Train a stage and measure it: its folder."""
        folder = self.out / name.replace(" ", "-")
        features, words = self.stores[cells], self.words
        train(recipe, data or self.data, folder, tracker=None, features=features, text_features=words)
        self.found[name] = measure(load(folder), self.data.split("val"), features, words)
        return folder

    def train_single(self, settings: list[str], seeds: int) -> Path:
        """One vector: the recipe from each seed, then the best on finer cells."""

        def stage(cells: int | None, *more: str) -> Recipe:
            return recipes.load(RECIPE, [*settings, f"image.encoder.grid={json.dumps(cells)}", *more])

        coarse = recipes.load(RECIPE, settings).image.encoder["grid"]
        runs = {}
        for seed in range(seeds):
            runs[f"seed {seed}"] = self.run(f"seed {seed}", stage(coarse, f"training.seed={seed}"), coarse)
        name = max(runs, key=lambda name: self.found[name]["rsum"])
        folder = runs[name]
        for cells, epochs, rate in STAGES:
            name = f"{name}, {cells or 'patches'}"
            more = f"start={folder}", f"training.epochs={epochs}", f"optimiser.lr={rate}"
            folder = self.run(name, stage(cells, *more), cells)
        return folder

    def grow(self, single: str, folders: Sequence[Path]) -> Path:
        """The set around one vector, and its K = 1 twin: the folder of the set. folders: Flickr8k, then COCO."""
        learned_from = open_collection(merge(folders[0], folders[1:], self.out / "five-captions"))
        self.found["one vector"] = measure(
            load(single), self.data.split("val"), features=self.stores[None], text_features=self.words
        )
        grown = {
            name: self.run(name, grow_recipe(load(single), single, k, overrides=[*GROWTH, *own]), None, learned_from)
            for name, (k, own) in SETS.items()
        }
        return grown["set"]


def save(run: Path, out: Path, found: Mapping[str, Any]) -> Path:
    """The model of a run as it is shipped: float16, the heads alone, a card with the figures."""
    model = load(run)
    summary = "Photographs and English sentences in one space, over DINOv2-small and MiniLM."
    described = {"name": NAME, "summary": summary, "start": EARLIER}
    model.provenance["recipe"] = {**model.provenance.get("recipe", {}), **described}
    model.provenance["start"] = {**model.provenance["start"], "model": EARLIER}
    model.provenance["validation"] = {name: found["set"][name] for name in (*FIGURES, "protocol")}
    folder = model.save(out, {"license": "apache-2.0", "language": "en"}, small=True)
    figures = {"set": found["set"], "one": found["twin"], "base": found["one vector"]}
    card = folder / "README.md"
    told = CARD.format(size=model.set_sizes[0], **figures)
    card.write_text(card.read_text(encoding="utf-8") + told, encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flickr8k", type=Path, required=True, help="train to learn from, val to choose by")
    parser.add_argument(
        "--coco", type=Path, nargs="+", default=[], help="all is to learn from; five captions a photo first"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], dest="settings", help="a setting of the recipe")
    parser.add_argument("--single", help="a model of one vector: grow the set around it, and train none")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    if not (given.coco or given.single):
        parser.error("one of --coco, to train the vector on, and --single, a vector that is trained, is needed")

    data = open_collection(merge(given.flickr8k, given.coco, given.out / "data"))
    recipe, words = recipes.load(RECIPE, given.settings), given.out / "text-features"
    extract_texts(data, cast(TextEncoder, build(**recipe.text.encoder)), words)
    patches = extract(data, cast(PixelEncoder, build(**{**recipe.image.encoder, "grid": None})), given.out / "patches")
    maker = Maker(data, given.out, {None: given.out / "patches"}, words)
    if not given.single:
        for cells in (recipe.image.encoder["grid"], *(cells for cells, *_ in STAGES if cells is not None)):
            maker.stores[cells] = given.out / f"cells-{cells}"
            average_cells(patches, build(**{**recipe.image.encoder, "grid": cells}), maker.stores[cells])
    single = given.single or str(maker.train_single(given.settings, given.seeds))
    grown = maker.grow(single, [given.flickr8k, *given.coco[:1]])
    behind = maker.found["twin"]["rsum"] - maker.found["set"]["rsum"]
    if behind > 1:
        raise SystemExit(f"The set is {behind:.1f} RSUM behind its K = 1 twin, more than 1: no model was saved.")
    folder = save(grown, given.out / "model", maker.found)
    maker.found["saved small"] = measure(
        load(folder), data.split("val"), features=maker.stores[None], text_features=words
    )
    given.output.write_text(json.dumps({"settings": given.settings, "models": maker.found}, indent=1) + "\n")
    for name, figures in maker.found.items():
        told = "  ".join(f"{figures[key]:.1f}" for key in (*FIGURES[1:], *PARTS))
        print(f"{name:32} RSUM {figures['rsum']:.1f}  {told}")


if __name__ == "__main__":
    main()
