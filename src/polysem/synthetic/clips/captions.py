"""What one says of a clip: of all that happens in it, of two things, of one; and of each moment by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from polysem.synthetic.clips.storyboard import Cast, Part
from polysem.synthetic.scenes.backdrops import Backdrop
from polysem.synthetic.scenes.english import listed, sentence, some

CAPTIONS = 5
Colour = Callable[[str], str | None]

_SEQUENCES = (
    "first {0}, then {1}",
    "{0}, and after that {1}",
    "{0} before {1}",
    "{0}; later {1}",
)


def moment_captions(cast: Cast, colour: Colour, rng: Random) -> list[str]:
    """One for each moment, that names no other."""
    places = [rng.choice((None, _place(part, cast.backdrop, rng))) for part in cast.parts]
    return [sentence(_event(part, colour, rng, place)) for part, place in zip(cast.parts, places, strict=True)]


def clip_captions(cast: Cast, colour: Colour, rng: Random) -> list[str]:
    """Five different ones: two of a single event, two of two events in their order, one that names every object."""
    numbers = list(range(len(cast.parts)))
    alone = rng.sample(numbers, 2)
    pairs = rng.sample([(a, b) for a in numbers for b in numbers if a < b], 2)
    texts = [_event(part, colour, rng, _place(part, cast.backdrop, rng)) for part in (cast.parts[n] for n in alone)]
    texts += [_pair(cast.parts[a], cast.parts[b], colour, rng) for a, b in pairs]
    texts.append(_everything(cast, colour, rng))
    rng.shuffle(texts)
    return [sentence(text) for text in texts]


def _event(part: Part, colour: Colour, rng: Random, place: str | None = None) -> str:
    said = f"{_object(part, colour, rng)} {rng.choice(part.action.phrases)}"
    return f"{said} {place}" if place else said


def _pair(first: Part, second: Part, colour: Colour, rng: Random) -> str:
    return rng.choice(_SEQUENCES).format(_event(first, colour, rng), _event(second, colour, rng))


def _everything(cast: Cast, colour: Colour, rng: Random) -> str:
    objects = [_object(part, colour, rng) for part in cast.parts]
    form = rng.choice(("{0} appear one after the other {1}", "{0} can be seen in turn {1}", "a clip of {0} {1}"))
    return form.format(listed(objects), rng.choice(cast.backdrop.scenery))


def _object(part: Part, colour: Colour, rng: Random) -> str:
    named = colour(part.glyph) if part.kind.has_colour and rng.random() < 0.5 else None
    return some(part.kind.name, 1, named)


def _place(part: Part, backdrop: Backdrop, rng: Random) -> str:
    by_footing: dict[str, Sequence[str]] = {"air": backdrop.skies, "water": backdrop.waters}
    return rng.choice(by_footing.get(part.zone.footing) or backdrop.places or backdrop.scenery)
