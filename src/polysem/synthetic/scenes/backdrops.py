"""The places a picture can show: where things stand, float or fly in them, and how one speaks of the place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Footing = Literal["air", "water", "ground", "free"]


@dataclass(frozen=True)
class Zone:
    """A band of the picture for kinds of certain homes; `top` and `bottom` are shares of its height.

    Things on the ground and on water have their foot in the band and are larger nearer the viewer; things in the air
    and in free zones have their middle in it.
    """

    footing: Footing
    homes: frozenset[str]
    top: float
    bottom: float


@dataclass(frozen=True)
class Backdrop:
    """`places` says where things on the ground are, `waters` and `skies` those elsewhere; `scenery` suits them all."""

    name: str
    weight: int
    zones: tuple[Zone, ...]
    places: tuple[str, ...] = ()
    skies: tuple[str, ...] = ()
    waters: tuple[str, ...] = ()
    scenery: tuple[str, ...] = ()

    def zone_for(self, homes: frozenset[str]) -> Zone | None:
        """The zone a kind with these homes goes to: the first that takes it, or None."""
        return next((zone for zone in self.zones if not zone.homes or zone.homes & homes), None)


def _zone(footing: Footing, homes: str, top: float, bottom: float) -> Zone:
    return Zone(footing, frozenset(homes.split()), top, bottom)


_DAY = _zone("air", "sky day", 0.15, 0.30)

BACKDROPS = (
    Backdrop(
        "meadow",
        22,
        (_zone("ground", "land", 0.68, 0.95), _DAY),
        places=("in a meadow", "on the grass", "in a green field"),
        skies=("over a meadow", "in the sky"),
        scenery=("in the countryside", "out in the fields", "in a green landscape"),
    ),
    Backdrop(
        "hills",
        16,
        (_zone("ground", "land", 0.74, 0.95), _DAY),
        places=("in the hills", "on a hillside", "on a hill"),
        skies=("over the hills", "in the sky", "above the hills"),
        scenery=("in the hills", "in a hilly landscape"),
    ),
    Backdrop(
        "night",
        14,
        (_zone("ground", "land", 0.72, 0.95), _zone("air", "sky night", 0.15, 0.32)),
        places=("in a field at night", "under the night sky", "in the dark"),
        skies=("in the night sky", "in the dark sky"),
        scenery=("at night", "on a quiet night"),
    ),
    Backdrop(
        "street",
        14,
        (_zone("ground", "road", 0.74, 0.95), _DAY),
        places=("on the street", "on a road", "in town"),
        skies=("over the town", "in the sky", "above the roofs"),
        scenery=("in town", "in the city"),
    ),
    Backdrop(
        "beach",
        12,
        (_zone("ground", "sand", 0.78, 0.96), _zone("water", "sea", 0.60, 0.66), _DAY),
        places=("on the beach", "on the sand"),
        skies=("over the sea", "in the sky"),
        waters=("in the water", "in the sea"),
        scenery=("at the beach", "at the seaside"),
    ),
    Backdrop(
        "sea",
        9,
        (_zone("water", "sea", 0.66, 0.94), _DAY),
        skies=("over the sea", "above the waves", "in the sky"),
        waters=("in the water", "in the sea", "out at sea"),
        scenery=("out at sea", "on the open sea"),
    ),
    Backdrop(
        "underwater",
        9,
        (_zone("free", "deep", 0.18, 0.82),),
        places=("under the sea", "underwater", "in the ocean"),
        scenery=("under the sea", "underwater", "in the ocean"),
    ),
    Backdrop(
        "snow",
        9,
        (_zone("ground", "snow", 0.68, 0.95), _zone("air", "sky snow-sky", 0.15, 0.30)),
        places=("in the snow", "on a snowy field"),
        skies=("over a snowy field", "in the winter sky"),
        scenery=("on a snowy day", "in winter", "on a winter day"),
    ),
    Backdrop(
        "desert",
        7,
        (_zone("ground", "desert", 0.70, 0.95), _DAY),
        places=("in the desert", "on the desert sand", "among the dunes"),
        skies=("over the desert", "in the desert sky"),
        scenery=("in the desert",),
    ),
    Backdrop(
        "room",
        16,
        (_zone("ground", "room", 0.72, 0.95),),
        places=("in a room", "on the floor", "on a wooden floor"),
        scenery=("in a room", "at home"),
    ),
    Backdrop(
        "table",
        18,
        (_zone("ground", "table", 0.56, 0.92),),
        places=("on a table", "on the kitchen table", "on a wooden table"),
        scenery=("on a table", "on the kitchen table", "on a wooden table"),
    ),
    Backdrop(
        "pastel",
        18,
        (_zone("free", "", 0.18, 0.82),),
        places=("on a pastel background", "on a light background"),
        scenery=("on a pastel background", "on a light background"),
    ),
)
"""Every backdrop. A zone without homes takes everything."""
