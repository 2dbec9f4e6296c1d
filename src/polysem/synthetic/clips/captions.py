"""What one says of a clip: of all that happens in it, of two things, of one; and of each moment by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from polysem.synthetic.clips.storyboard import ClipMoment, ClipPlan
from polysem.synthetic.scenes.catalogue import Backdrop
from polysem.synthetic.scenes.english import indefinite_phrase, join_phrases, to_sentence

CAPTIONS = 5
Colour = Callable[[str], str | None]

_SEQUENCES = (
    "first {0}, then {1}",
    "{0}, and after that {1}",
    "{0} before {1}",
    "{0}; later {1}",
)


def moment_captions(plan: ClipPlan, colour: Colour, rng: Random) -> list[str]:
    """One for each moment, that names no other."""
    places = [rng.choice((None, _place(moment, plan.backdrop, rng))) for moment in plan.moments]
    return [to_sentence(_event(moment, colour, rng, place)) for moment, place in zip(plan.moments, places, strict=True)]


def clip_captions(plan: ClipPlan, colour: Colour, rng: Random) -> list[str]:
    """Five different ones: two of a single event, two of two events in their order, one that names every object."""
    numbers = list(range(len(plan.moments)))
    alone = rng.sample(numbers, 2)
    pairs = rng.sample([(a, b) for a in numbers for b in numbers if a < b], 2)
    singles = (plan.moments[number] for number in alone)
    texts = [_event(moment, colour, rng, _place(moment, plan.backdrop, rng)) for moment in singles]
    texts += [_pair(plan.moments[a], plan.moments[b], colour, rng) for a, b in pairs]
    texts.append(_everything(plan, colour, rng))
    rng.shuffle(texts)
    return [to_sentence(text) for text in texts]


def _event(moment: ClipMoment, colour: Colour, rng: Random, place: str | None = None) -> str:
    event = f"{_object(moment, colour, rng)} {rng.choice(moment.action.phrases)}"
    return f"{event} {place}" if place else event


def _pair(first: ClipMoment, second: ClipMoment, colour: Colour, rng: Random) -> str:
    return rng.choice(_SEQUENCES).format(_event(first, colour, rng), _event(second, colour, rng))


def _everything(plan: ClipPlan, colour: Colour, rng: Random) -> str:
    objects = [_object(moment, colour, rng) for moment in plan.moments]
    form = rng.choice(("{0} appear one after the other {1}", "{0} can be seen in turn {1}", "a clip of {0} {1}"))
    return form.format(join_phrases(objects), rng.choice(plan.backdrop.scenery))


def _object(moment: ClipMoment, colour: Colour, rng: Random) -> str:
    named = colour(moment.glyph) if moment.kind.has_colour and rng.random() < 0.5 else None
    return indefinite_phrase(moment.kind.name, 1, named)


def _place(moment: ClipMoment, backdrop: Backdrop, rng: Random) -> str:
    by_footing: dict[str, Sequence[str]] = {"air": backdrop.skies, "water": backdrop.waters}
    return rng.choice(by_footing.get(moment.zone.footing) or backdrop.places or backdrop.scenery)
