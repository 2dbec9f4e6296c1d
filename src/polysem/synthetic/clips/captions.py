"""What one says of a clip: of all that happens in it, of two things, of one; and of each moment by itself."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from polysem.synthetic.clips.storyboard import ClipMoment, ClipPlan
from polysem.synthetic.scenes.catalogue import Backdrop
from polysem.synthetic.scenes.english import indefinite_phrase, join_phrases, to_sentence

CAPTIONS = 5
Colour = Callable[[str], str | None]

_SEQUENCES = ("first {0}, then {1}", "{0}, and after that {1}", "{0} before {1}", "{0}; later {1}")
_ENUMERATIONS = ("{0} appear one after the other {1}", "{0} can be seen in turn {1}", "a clip of {0} {1}")


def write_moment_captions(plan: ClipPlan, colour: Colour, rng: Random) -> list[str]:
    """One for each moment, that names no other."""
    places = [rng.choice((None, _choose_place(moment, plan.backdrop, rng))) for moment in plan.moments]
    return [
        to_sentence(_describe_event(moment, colour, rng, place))
        for moment, place in zip(plan.moments, places, strict=True)
    ]


def write_clip_captions(plan: ClipPlan, colour: Colour, rng: Random) -> list[str]:
    """Five different ones: two of a single event, two of two events in their order, one that names every object."""
    numbers = list(range(len(plan.moments)))
    alone = rng.sample(numbers, 2)
    pairs = rng.sample([(a, b) for a in numbers for b in numbers if a < b], 2)
    singles = (plan.moments[number] for number in alone)
    texts = [_describe_event(moment, colour, rng, _choose_place(moment, plan.backdrop, rng)) for moment in singles]
    for pair in pairs:
        sequence = rng.choice(_SEQUENCES)
        texts.append(sequence.format(*(_describe_event(plan.moments[number], colour, rng) for number in pair)))
    objects = join_phrases([_name_object(moment, colour, rng) for moment in plan.moments])
    texts.append(rng.choice(_ENUMERATIONS).format(objects, rng.choice(plan.backdrop.scenery)))
    rng.shuffle(texts)
    return [to_sentence(text) for text in texts]


def _describe_event(moment: ClipMoment, colour: Colour, rng: Random, place: str | None = None) -> str:
    event = f"{_name_object(moment, colour, rng)} {rng.choice(moment.action.phrases)}"
    return f"{event} {place}" if place else event


def _name_object(moment: ClipMoment, colour: Colour, rng: Random) -> str:
    named = colour(moment.glyph) if moment.kind.has_colour and rng.random() < 0.5 else None
    return indefinite_phrase(moment.kind.name, 1, named)


def _choose_place(moment: ClipMoment, backdrop: Backdrop, rng: Random) -> str:
    return rng.choice(backdrop.phrases_for(moment.zone.footing) or backdrop.places or backdrop.scenery)
