"""What there is to draw, where, and what it is called in English, as the YAML files beside this module list it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import yaml

from polysem.environment import install_command
from polysem.errors import ConfigError, InputError

Footing = Literal["air", "water", "ground", "free"]

FAMILIES = 5
"""Kinds of different families meet in train and val pictures, kinds of one family in test pictures; see `scene`."""


def load_table(name: str) -> Any:
    """The content of one of the YAML files beside this module."""
    return yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))


CATALOGUE: dict[str, Any] = load_table("catalogue.yaml")
_MEASURED: dict[str, list[str]] = CATALOGUE["measured"]
_IRREGULAR: dict[str, str] = CATALOGUE["irregular_plurals"]
UNIQUE = frozenset({"sun", "moon"})
"""There is only one of these, in the world and in a picture."""
NUMBERS = ("no", "one", "two", "three", "four", "five")


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

    @property
    def is_surface(self) -> bool:
        """Whether things stand or float on it."""
        return self.footing in ("ground", "water")

    def find_top(self, size: int, depth: float, height: int) -> float:
        """The upper edge, in a picture of `size` pixels, of an object that is `depth` (0 to 1) down in the zone."""
        return size * (self.top + (self.bottom - self.top) * depth) - (height if self.is_surface else height / 2)


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

    def zones_for(self, kind: ObjectKind) -> list[Zone]:
        """The zones that take a kind. It goes to the first."""
        return [zone for zone in self.zones if not zone.homes or zone.homes & kind.homes]

    def phrases_for(self, footing: Footing) -> tuple[str, ...]:
        """The ways to say where a thing with this footing is."""
        return {"air": self.skies, "water": self.waters}.get(footing, self.places)


BACKDROPS = tuple(
    Backdrop(
        name,
        entry["weight"],
        tuple(Zone(footing, frozenset(homes.split()), *band) for footing, homes, *band in entry["zones"]),
        **{key: tuple(entry.get(key, ())) for key in ("places", "skies", "waters", "scenery")},
    )
    for name, entry in load_table("backdrops.yaml").items()
)


@dataclass(frozen=True)
class ObjectKind:
    """One kind of object. `glyphs` are its looks: emoji that share the name and differ in colour or pose."""

    name: str
    group: str
    homes: frozenset[str]
    size: float
    glyphs: tuple[str, ...]
    family: int

    @property
    def has_colour(self) -> bool:
        """Whether a person would mention the colour of such a thing."""
        return self.group not in CATALOGUE["colourless_groups"] and self.name not in CATALOGUE["colourless"]

    @property
    def turns(self) -> bool:
        """Whether its mirror image is as good as itself."""
        return self.group in ("animal", "person", "vehicle")


def are_confusable(a: ObjectKind, b: ObjectKind) -> bool:
    """Whether counting or naming one may take in the other (tree and fir tree): they never share a picture."""
    shorter, longer = sorted((a.name, b.name), key=len)
    cases: dict[str, list[str]] = CATALOGUE["cases_of"]
    return longer.endswith(f" {shorter}") or b.name in cases.get(a.name, ()) or a.name in cases.get(b.name, ())


def parse_kinds(rows: str, name_of: Callable[[str], str]) -> tuple[ObjectKind, ...]:
    """The kinds of a catalogue's rows, assigned to families so that each family has its share of every home."""
    kinds: list[ObjectKind] = []
    assigned: Counter[tuple[str, int]] = Counter()
    for row in filter(None, map(str.strip, rows.splitlines())):
        group, homes, size, entries = (cell.strip() for cell in row.split("|"))
        for entry in entries.split():
            glyphs = tuple(entry.split("="))
            names = {name_of(glyph) for glyph in glyphs}
            if len(names) != 1:
                raise ConfigError(f"The looks {entry} of one kind have different names: {', '.join(sorted(names))}.")
            at_home = homes.split()
            family = min(range(FAMILIES), key=lambda each: (sum(assigned[home, each] for home in at_home), each))
            assigned.update((home, family) for home in at_home)
            kinds.append(ObjectKind(names.pop(), group, frozenset(at_home), float(size), glyphs, family))
    repeated = [name for name, count in Counter(kind.name for kind in kinds).items() if count > 1]
    if repeated:
        raise ConfigError(f"Two rows of the catalogue are both called {repeated[0]!r}.")
    return tuple(kinds)


def load_kinds() -> tuple[ObjectKind, ...]:
    """Every kind, named by the installed `emoji` package."""
    try:
        known: dict[str, dict[str, str]] = import_module("emoji").EMOJI_DATA
    except ImportError as error:
        raise InputError(f"Emoji scenes need the package 'emoji': {install_command('offline')}") from error

    def name_of(glyph: str) -> str:
        if glyph not in known:
            raise InputError(f"The package 'emoji' is too old to know {glyph}. Update it: {install_command('offline')}")
        return clean_name(known[glyph]["en"])

    return parse_kinds(CATALOGUE["kinds"], name_of)


def clean_name(package_name: str) -> str:
    """`:front-facing_baby_chick:` as words, then as the word people use."""
    words = package_name.strip(":").replace("_", " ")
    return str(CATALOGUE["renamed"].get(words, words))


def name_noun(name: str, several: bool = False, colour: str | None = None) -> str:
    """What one or several of them are called: `corn` is an ear of corn, and jeans are a pair of blue jeans."""
    words = _MEASURED[name][several] if name in _MEASURED else _pluralise(name) if several else name
    if colour is None:
        return words
    measure, of, stuff = words.partition(" of ")
    return f"{measure} of {colour} {stuff}" if of else f"{colour} {words}"


def _pluralise(name: str) -> str:
    before, space, head = name.rpartition(" ")
    if head.endswith("fish"):  # starfish and pufferfish too
        return name
    if head in _IRREGULAR:
        return before + space + _IRREGULAR[head]
    if re.search(r"(s|x|z|ch|sh)$", head):
        return name + "es"
    if re.search(r"[^aeiou]y$", head):
        return name[:-1] + "ies"
    return name + "s"


def choose_article(phrase: str) -> str:
    """`a` or `an`, by sound where the spelling misleads."""
    if re.match(r"(uni|use|eu|one\b|ukulele)", phrase, re.IGNORECASE):
        return "a"
    return "an" if phrase[0].lower() in "aeiou" or phrase.startswith(("hour", "honest")) else "a"


def indefinite_phrase(name: str, count: int = 1, colour: str | None = None) -> str:
    """`a red apple`, `two dogs`, `the sun`."""
    words = name_noun(name, count > 1, colour)
    if count > 1:
        return f"{NUMBERS[count]} {words}"
    return f"the {words}" if name in UNIQUE else f"{choose_article(words)} {words}"


def definite_phrase(name: str, count: int = 1, colour: str | None = None) -> str:
    """`the red apple`, `the two dogs`."""
    number = f"{NUMBERS[count]} " if count > 1 else ""
    return f"the {number}{name_noun(name, count > 1, colour)}"


def join_phrases(phrases: Sequence[str]) -> str:
    """`a dog, a cat and two trees`."""
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"


def to_sentence(text: str) -> str:
    """A capital at the start and a full stop at the end."""
    tidy = re.sub(r"\s+([,.!?:])", r"\1", re.sub(r"\s+", " ", text)).strip()
    return tidy[0].upper() + tidy[1:] + ("" if tidy[-1] in ".!?" else ".")


def split_tokens(text: str) -> list[str]:
    """Lower-case words without punctuation, as the Karpathy splits hold them."""
    return re.findall(r"[a-z0-9]+(?:['’-][a-z0-9]+)*", text.lower())
