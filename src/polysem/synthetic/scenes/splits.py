"""Which kinds meet in which picture, such that test pictures show combinations nobody has trained on.

Kinds belong to families. Train and val pictures take their kinds from *different* families, test pictures from
*one*: no two kinds that meet in a test picture ever meet in train or val. A test picture shows only kinds that
an earlier train picture has shown. The families depend on the vocabulary alone, not on the seed, so sets made with
different seeds can be put together.

Picture i depends on the seed and on the pictures before it, never on how many follow: a larger set begins with the
smaller one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from polysem.synthetic.scenes.catalogue import BACKDROPS, Backdrop, ObjectKind, are_confusable
from polysem.synthetic.scenes.english import UNIQUE

Split = Literal["train", "val", "test"]

_OBJECTS = {2: 16, 3: 30, 4: 30, 5: 24}
_REPEATS = 0.4
_MOST_IN_THE_AIR = 2


@dataclass(frozen=True)
class ScenePlan:
    """What picture `index` will show: how many of which kinds, and where."""

    index: int
    split: Split
    backdrop: Backdrop
    counts: tuple[tuple[ObjectKind, int], ...]


def choose_split(index: int) -> Split:
    """Of every ten pictures eight train, the ninth validates and the tenth tests."""
    return ("val" if index % 10 == 8 else "test") if index % 10 >= 8 else "train"


def item_rng(dataset: str, seed: int, index: int, purpose: str) -> Random:
    """A stream of its own for every item and purpose: none depends on how much another one drew."""
    return Random(f"{dataset}/{seed}/{index}/{purpose}")


def plan_scenes(kinds: Sequence[ObjectKind], items: int, seed: int) -> Iterator[ScenePlan]:
    """Plan the first `items` pictures."""
    trained: set[ObjectKind] = set()
    for index in range(items):
        split, rng = choose_split(index), item_rng("emoji-scenes", seed, index, "cast")
        pool = [kind for kind in kinds if kind in trained] if split == "test" else kinds
        plan = None
        while plan is None:
            plan = _draw_plan(index, split, pool, rng)
        if split == "train":
            trained.update(kind for kind, _ in plan.counts)
        yield plan


def _draw_plan(index: int, split: Split, pool: Sequence[ObjectKind], rng: Random) -> ScenePlan | None:
    """One draw; None when backdrop and family leave fewer than two kinds to choose from."""
    backdrop = rng.choices(BACKDROPS, [each.weight for each in BACKDROPS])[0]
    objects = rng.choices(list(_OBJECTS), list(_OBJECTS.values()))[0]
    repeats = min(rng.choice((1, 1, 2)), objects - 2) if rng.random() < _REPEATS else 0
    at_home = [kind for kind in pool if backdrop.zone_for(kind.homes) is not None]
    if split == "test":
        family = rng.choice(sorted({kind.family for kind in pool}))
        at_home = [kind for kind in at_home if kind.family == family]
    rng.shuffle(at_home)
    # Something has to stand below: two kites over an empty meadow are not a scene.
    standing = next((kind for kind in at_home if not _flies(kind, backdrop)), None)
    if standing is None:
        return None
    chosen = [standing]
    for kind in at_home:
        if len(chosen) < objects - repeats and _may_join(kind, chosen, backdrop, mixed=split != "test"):
            chosen.append(kind)
    if len(chosen) < 2:
        return None
    counts = dict.fromkeys(chosen, 1)
    countable = [kind for kind in chosen if kind.name not in UNIQUE and kind.size < 0.4]
    if repeats and countable:
        counts[rng.choice(countable)] += repeats
    return ScenePlan(index, split, backdrop, tuple(counts.items()))


def _may_join(kind: ObjectKind, chosen: Sequence[ObjectKind], backdrop: Backdrop, *, mixed: bool) -> bool:
    """Whether the kind may enter the picture: its family, its look-alikes, and room in the sky decide."""
    if kind in chosen or (mixed and any(kind.family == other.family for other in chosen)):
        return False
    if any(are_confusable(kind, other) for other in chosen):
        return False
    return not _flies(kind, backdrop) or sum(_flies(other, backdrop) for other in chosen) < _MOST_IN_THE_AIR


def _flies(kind: ObjectKind, backdrop: Backdrop) -> bool:
    zone = backdrop.zone_for(kind.homes)
    return zone is not None and zone.footing == "air"
