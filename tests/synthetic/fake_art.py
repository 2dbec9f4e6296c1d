"""A small vocabulary and plain discs for drawings: composition, captions and splits need no package to be tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from polysem.synthetic import dataset_folder
from polysem.synthetic.scenes import make
from polysem.synthetic.scenes.art import Art
from polysem.synthetic.scenes.catalogue import ObjectKind, parse_kinds

ROWS = """
animal  | land           | .42 | elephant giraffe horse cow
animal  | land road room | .30 | dog cat.orange=cat.black sheep mouse
animal  | deep           | .25 | fish octopus crab squid jellyfish
animal  | sea            | .25 | swan dolphin duck
animal  | sky            | .25 | eagle bee
animal  | snow desert    | .30 | penguin camel fox snake
plant   | land desert    | .40 | oak cactus
plant   | land sand      | .25 | rose daisy
vehicle | road           | .34 | car.red taxi bus tractor
vehicle | sea sand       | .30 | sailboat canoe
vehicle | sky            | .30 | helicopter airplane
sky     | day snow-sky   | .26 | sun
sky     | night          | .20 | moon star comet
toy     | room sand snow | .20 | kite ball
thing   | room sand snow | .28 | umbrella present bucket box
fruit   | table          | .24 | apple.red=apple.green orange grapes lemon
food    | table          | .24 | bread egg.white cookie
instrument | room        | .30 | guitar drum
person  | land snow sand | .34 | dancer juggler
"""

_FILLS = ("ea5a47", "fcea2b", "5c9e31", "61b2e4", "a57939", "ffffff", "9b9b9a", "8967aa")
_NAMED = {"red": "ea5a47", "orange": "e27022", "green": "5c9e31", "black": "3f3f3f", "white": "ffffff"}


def fake_kinds() -> tuple[ObjectKind, ...]:
    return parse_kinds(ROWS, lambda glyph: glyph.partition(".")[0])


def disc(glyph: str) -> Image.Image:
    """An outlined ellipse: its colour after the dot in the name, its shape by the name's letters."""
    number = sum(map(ord, glyph))
    colour = _NAMED.get(glyph.partition(".")[2], _FILLS[number % len(_FILLS)])
    image = Image.new("RGBA", (120, 120))
    box = (10 + number % 30, 12, 108, 112 - number % 40)
    ImageDraw.Draw(image).ellipse(box, "#" + colour, "#000000", 4)
    return image


def fake_art() -> Art:
    return Art(disc)


def use_fake_art(patch: pytest.MonkeyPatch) -> None:
    """The generator of scenes on discs instead of OpenMoji."""
    patch.setattr(make, "load_kinds", fake_kinds)
    patch.setattr(make, "openmoji_art", lambda pixels: fake_art())
    patch.setattr(dataset_folder, "installed_version", lambda package: "1.0")


def make_fake_scenes(out: Path, items: int, seed: int, size: int) -> list[dict[str, Any]]:
    """The entries of a set that is made with discs."""
    with pytest.MonkeyPatch.context() as patch:
        use_fake_art(patch)
        make.make_emoji_scenes(out, items, seed, size)
    return json.loads((out / make.LIST).read_text(encoding="utf-8"))["images"]
