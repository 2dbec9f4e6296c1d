"""The kinds of objects, under the names the `emoji` package gives them, made into words people write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module

from polysem.environment import install_command
from polysem.errors import ConfigError, InputError
from polysem.synthetic.scenes.catalogue import COLOURLESS, COLOURLESS_GROUPS, RENAMED, ROWS

FAMILIES = 5
"""Kinds of different families meet in train and val pictures, kinds of one family in test pictures; see `splits`."""

# Kinds that are a case of another one, beyond what their names show: "two fish" beside a shark could be three.
_CASES_OF = {"fish": {"shark", "pufferfish"}, "car": {"taxi", "jeep"}, "soccer ball": {"volleyball"}}


@dataclass(frozen=True)
class Kind:
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
        return self.group not in COLOURLESS_GROUPS and self.name not in COLOURLESS

    @property
    def turns(self) -> bool:
        """Whether its mirror image is as good as itself."""
        return self.group in ("animal", "person", "vehicle")


def confusable(a: Kind, b: Kind) -> bool:
    """Whether counting or naming one may take in the other (tree and fir tree): they never share a picture."""
    shorter, longer = sorted((a.name, b.name), key=len)
    return longer.endswith(f" {shorter}") or b.name in _CASES_OF.get(a.name, ()) or a.name in _CASES_OF.get(b.name, ())


def build(rows: str, name_of: Callable[[str], str]) -> tuple[Kind, ...]:
    """The kinds of a catalogue's rows, dealt to families so that each family has its share of every home."""
    kinds: list[Kind] = []
    dealt: Counter[tuple[str, int]] = Counter()
    for row in filter(None, map(str.strip, rows.splitlines())):
        group, homes, size, entries = (cell.strip() for cell in row.split("|"))
        for entry in entries.split():
            glyphs = tuple(entry.split("="))
            names = {name_of(glyph) for glyph in glyphs}
            if len(names) != 1:
                raise ConfigError(f"The looks {entry} of one kind have different names: {', '.join(sorted(names))}.")
            places = homes.split()
            family = min(range(FAMILIES), key=lambda each: (sum(dealt[place, each] for place in places), each))
            dealt.update((place, family) for place in places)
            kinds.append(Kind(names.pop(), group, frozenset(places), float(size), glyphs, family))
    _refuse_duplicates(kind.name for kind in kinds)
    return tuple(kinds)


def vocabulary() -> tuple[Kind, ...]:
    """Every kind, named by the installed `emoji` package."""
    try:
        known: dict[str, dict[str, str]] = import_module("emoji").EMOJI_DATA
    except ImportError as error:
        raise InputError(f"Emoji scenes need the package 'emoji': {install_command('offline')}") from error

    def name_of(glyph: str) -> str:
        if glyph not in known:
            raise InputError(
                f"The installed package 'emoji' does not know {glyph}; a newer one does: {install_command('offline')}"
            )
        return plain_name(known[glyph]["en"])

    return build(ROWS, name_of)


def plain_name(package_name: str) -> str:
    """`:front-facing_baby_chick:` as words, then as the word people use."""
    words = package_name.strip(":").replace("_", " ")
    return RENAMED.get(words, words)


def _refuse_duplicates(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"Two rows of the catalogue are both called {name!r}.")
        seen.add(name)
