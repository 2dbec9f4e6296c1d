"""Makes the model polysem/photo-base: features, members, their distillation into one, sets around its vector.

Photographs and captions of Karpathy collections are learned from: the train split of Flickr8k, and all of the COCO
folders. Flickr8k's val split picks weights and is what is reported; test splits are never opened. Stopped at any
moment, the same command goes on, from the step it was at.

    polysem weights get dinov2-small
    python benchmarks/photo_base.py --flickr8k flickr8k --coco coco-1 coco-2 --out runs/photo-base

1. Features of frozen DINOv2-small, averaged to 4 x 4 cells, and of MiniLM's words, once.
2. Members: the recipe photo-base from several seeds, one vector each.
3. The teacher: the members joined. The single: the recipe once more, half of its loss from the teacher.
4. The set: `polysem grow`, elements that compete for the cells around the single's vector, which stays as it is.
5. Both read all 16 x 16 patches instead of the cells, are measured on val, and the set is saved small in --out/model.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from photo_data import FIGURES, measure, merge

from polysem import recipes
from polysem.data import Collection, open_collection
from polysem.encoders import build, extract, extract_texts
from polysem.models import Model, join, load
from polysem.models import build as build_model
from polysem.training import train
from polysem.training.start import grow_recipe

RESULTS = Path(__file__).parent / "results" / "photo-base.json"
RECIPE, NAME = "photo-base", "polysem/photo-base"


def read_every_patch(model: Model) -> Model:
    """The same heads over all patches of a picture in place of the means of cells: they have no weights of places."""
    config = model.config
    encoder = {**config["image"]["encoder"], "grid": None, "pretrained": True}
    text = {**config["text"], "encoder": {**config["text"]["encoder"], "pretrained": True}}
    finer = build_model(**{**config, "image": {**config["image"], "encoder": encoder}, "text": text})
    finer.load_state_dict(model.state_dict(), strict=False)
    finer.provenance = model.provenance
    return finer.eval()


def train_members(given: argparse.Namespace, data: Collection, stores: dict[str, Path]) -> list[Model]:
    folders = [given.out / f"member-{seed}" for seed in range(1, given.members + 1)]
    for seed, folder in enumerate(folders, 1):
        recipe = recipes.load(RECIPE, [*given.settings, f"training.seed={seed}"])
        train(recipe, data, folder, tracker=None, **stores)
    return [load(folder) for folder in folders]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flickr8k", type=Path, required=True, help="train to learn from, val to choose by")
    parser.add_argument("--coco", type=Path, nargs="+", required=True, help="folders of which all is to learn from")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--members", type=int, default=3, help="that teach; 0 for no teacher")
    parser.add_argument("--k", type=int, default=8, help="elements of an image's set")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="a setting of the recipe")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()

    data = open_collection(merge(given.flickr8k, given.coco, given.out / "data"))
    recipe = recipes.load(RECIPE, given.settings)
    stores = {"features": given.out / "features", "text_features": given.out / "text-features"}
    extract(data, build(**recipe.image.encoder), stores["features"])
    extract_texts(data, build(**recipe.text.encoder), stores["text_features"])
    found: dict[str, Any] = {}
    teacher: list[str] = []
    if given.members:
        members = train_members(given, data, stores)
        found |= {f"member {seed}": measure(model, data, **stores) for seed, model in enumerate(members, 1)}
        joined = join(members)
        found["members joined"] = measure(joined, data, **stores)
        joined.save(given.out / "teacher")
        teacher = [f"teacher={{model: {given.out / 'teacher'}}}"]
    student = recipes.load(RECIPE, [*given.settings, *teacher])
    train(student, data, given.out / "single", tracker=None, **stores)
    single = load(given.out / "single")
    found["single"] = measure(single, data, **stores)
    # Without weights of places, so that the elements can read any grid.
    grown = grow_recipe(single, str(given.out / "single"), given.k, overrides=["image.sets.cells=null"])
    train(grown, data, given.out / "set", tracker=None, **stores)
    found["set"] = measure(load(given.out / "set"), data, **stores)

    val = data.split("val")
    every = read_every_patch(single)
    patches = given.out / "val-patches"
    extract(val, every.image.encoder, patches)  # type: ignore[arg-type]
    finer = {"features": patches, "text_features": stores["text_features"]}
    found["single, every patch"] = measure(every, val, **finer)
    model = read_every_patch(load(given.out / "set"))
    found["set, every patch"] = measure(model, val, **finer)
    summary = "Photographs and English sentences in one space: a set of vectors for a picture, one for a sentence."
    model.provenance["recipe"] = {**model.provenance.get("recipe", {}), "name": NAME, "summary": summary}
    model.provenance["validation"] = found["set, every patch"]
    model.save(given.out / "model", {"license": "apache-2.0", "language": "en"}, small=True)
    found["set, every patch, saved small"] = measure(load(given.out / "model"), val, **finer)
    given.output.write_text(json.dumps({"settings": given.settings, "models": found}, indent=1) + "\n")
    for name, figures in found.items():
        print(f"{name:32} RSUM {figures['rsum']:.1f}  " + "  ".join(f"{figures[key]:.1f}" for key in FIGURES[1:]))


if __name__ == "__main__":
    main()
