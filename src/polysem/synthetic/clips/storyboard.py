"""Which objects a clip shows, one after the other, and what each of them does.

A clip of the val or test split shows only kinds that earlier train clips have shown. Clip i depends on the seed and on
the clips before it, never on how many follow: a larger set begins with the smaller one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from polysem.synthetic.clips.actions import Action, drawn
from polysem.synthetic.scenes.backdrops import BACKDROPS, Backdrop, Zone
from polysem.synthetic.scenes.splits import Split, split_of
from polysem.synthetic.scenes.vocabulary import Kind, confusable

MOMENTS = (3, 4)
SECONDS = (2.0, 2.25, 2.5)
"""How long a moment lasts; multiples of a frame at `FPS`."""
FPS = 8


@dataclass(frozen=True)
class Part:
    """What happens in one moment. place: where between its leftmost and its rightmost place the object is, and depth:
    how far down in its zone, both from 0 to 1. frames: how long it takes."""

    kind: Kind
    glyph: str
    zone: Zone
    action: Action
    mirrored: bool
    place: float
    depth: float
    frames: int


@dataclass(frozen=True)
class Cast:
    """What clip `index` shows."""

    index: int
    split: Split
    backdrop: Backdrop
    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        return f"clip_{self.index:05d}"

    def spans(self) -> list[tuple[float, float]]:
        """Start and end of each part in seconds."""
        ends = [sum(part.frames for part in self.parts[: n + 1]) / FPS for n in range(len(self.parts))]
        return list(zip([0.0, *ends[:-1]], ends, strict=True))


def casts(kinds: Sequence[Kind], items: int, seed: int) -> Iterator[Cast]:
    """The casts of the first `items` clips."""
    shown: Counter[Kind] = Counter()
    for index in range(items):
        split, rng = split_of(index), Random(f"emoji-clips/{seed}/{index}/cast")
        pool = kinds if split == "train" else [kind for kind in kinds if shown[kind]]
        cast = None
        while cast is None:
            cast = _cast(index, split, pool, shown, rng)
        if split == "train":
            shown.update(part.kind for part in cast.parts)
        yield cast


def _cast(index: int, split: Split, pool: Sequence[Kind], shown: Counter[Kind], rng: Random) -> Cast | None:
    """One draw; None when the backdrop leaves too few kinds to choose from."""
    backdrop = rng.choices(BACKDROPS, [each.weight for each in BACKDROPS])[0]
    wanted = rng.choice(MOMENTS)
    at_home = [kind for kind in pool if backdrop.zone_for(kind.homes) is not None]
    # Those shown least come first, so that every kind is learned; among equals, and in held-out clips, it is chance.
    at_home.sort(key=lambda kind: (shown[kind] if split == "train" else 0, rng.random()))
    chosen: list[Kind] = []
    for kind in at_home:
        if len(chosen) < wanted and not any(confusable(kind, other) for other in chosen):
            chosen.append(kind)
    if len(chosen) < min(MOMENTS):
        return None
    rng.shuffle(chosen)
    return Cast(index, split, backdrop, tuple(_part(kind, backdrop, rng) for kind in chosen))


def _part(kind: Kind, backdrop: Backdrop, rng: Random) -> Part:
    zone = backdrop.zone_for(kind.homes)
    if zone is None:
        raise ValueError(f"{kind.name} has no home in the backdrop {backdrop.name}")
    return Part(
        kind,
        rng.choice(kind.glyphs),
        zone,
        drawn(zone, kind.turns, rng),
        kind.turns and rng.random() < 0.5,
        rng.uniform(0.1, 0.9),
        rng.random(),
        round(rng.choice(SECONDS) * FPS),
    )
