"""Five captions for a scene: claims chosen to say different things, worded in different ways."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from polysem.synthetic.scenes.caption_facts import Claim, Mention, Topic, find_claims
from polysem.synthetic.scenes.catalogue import (
    UNIQUE,
    Backdrop,
    definite_phrase,
    indefinite_phrase,
    join_phrases,
    load_table,
    to_sentence,
)
from polysem.synthetic.scenes.scene import Scene

_WORDING = load_table("wording.yaml")
RELATIONS: dict[str, list[str]] = _WORDING["relations"]
"""Form of claim -> the words for its relation."""
TEMPLATES: dict[str, list[str]] = _WORDING["templates"] | {
    form: [*_WORDING["related"], *_WORDING["templates"].get(form, ())] for form in RELATIONS
}
"""Form of claim -> its wordings."""

# What the captions of one picture talk about, in turn; whatever is left over fills the gaps.
_TURNS: tuple[tuple[Topic, ...], ...] = (
    ("list",),
    ("relation",),
    ("alone",),
    ("detail", "relation"),
    ("relation", "detail", "list", "alone"),
)
_EXISTENTIAL = re.compile(r"\b(there|here) \{is|picture of|_bare|I count|_coloured")
# Seldom possible, so preferred where they are.
_RARE = frozenset({"between", "row", "front", "behind", "peek", "under", "beside"})


@dataclass(frozen=True)
class SceneCaption:
    text: str
    template: str
    claim: Claim


def write_captions(scene: Scene, rng: Random) -> list[SceneCaption]:
    """Five captions, all true, no two of which say the same."""
    left = find_claims(scene)
    rng.shuffle(left)
    chosen: list[SceneCaption] = []
    for topics in _TURNS:
        claim = _choose_claim(left, topics, chosen, rng)
        chosen.append(_word_claim(claim, scene.backdrop, chosen, rng))
        left = [other for other in left if other.content != claim.content]
    rng.shuffle(chosen)
    return chosen


def _choose_claim(left: Sequence[Claim], topics: Sequence[Topic], chosen: Sequence[SceneCaption], rng: Random) -> Claim:
    """A claim on one of the topics that names kinds the captions so far have named least."""
    possible = list(dict.fromkeys(claim.topic for claim in left))
    topic = rng.choice([each for each in topics if each in possible] or possible)
    named = [mention.kind for caption in chosen for mention in caption.claim.mentions]
    subsets = [caption.claim.content[1] for caption in chosen]
    forms = [caption.claim.form for caption in chosen]

    def rate_staleness(claim: Claim) -> float:
        bare = {"presence": 1, "total": 3}.get(claim.about, 0) - (claim.form in _RARE)
        repeated = sum(named.count(mention.kind) for mention in claim.mentions) / len(claim.mentions)
        same = 2 * subsets.count(claim.content[1])
        return bare + repeated + same + forms.count(claim.form) + 1.5 * rng.random()

    return min((claim for claim in left if claim.topic == topic), key=rate_staleness)


def _word_claim(claim: Claim, backdrop: Backdrop, chosen: Sequence[SceneCaption], rng: Random) -> SceneCaption:
    footings = {mention.footing for mention in claim.mentions}
    where = backdrop.scenery if len(footings) > 1 else backdrop.phrases_for(footings.pop())
    place = rng.choice(where) if where else ""
    mentions = list(claim.mentions)
    if claim.topic == "list":
        rng.shuffle(mentions)
    unique = any(mention.kind.name in UNIQUE for mention in mentions)
    templates = [
        each
        for each in TEMPLATES[claim.form]
        if (place or "{P}" not in each) and not (unique and _EXISTENTIAL.search(each))
    ]
    fresh = [each for each in templates if each not in {caption.template for caption in chosen}]
    template = rng.choice(fresh or templates)
    # The place is said in about half of the captions that could say it.
    slots = {**claim.words, **_fill_phrases(mentions, rng), "P": place, "S": place if rng.random() < 0.5 else ""}
    if claim.form in RELATIONS:
        slots["rel"] = rng.choice(RELATIONS[claim.form])
    # A sentence that begins with its place pauses after it.
    pausing = template.replace("{P} ", "{P}, ", 1) if place and template.startswith("{P} ") else template
    return SceneCaption(to_sentence(pausing.format_map(slots)), template, claim)


def _fill_phrases(mentions: Sequence[Mention], rng: Random) -> dict[str, str]:
    """The noun phrases of a template. Whether a colour is mentioned is drawn anew for every mention."""
    slots: dict[str, str] = {}
    phrases = []
    for letter, mention in zip("ABCDE", mentions, strict=False):
        name, count = mention.kind.name, mention.count
        colour = mention.colour if rng.random() < 0.6 else None
        phrases.append(indefinite_phrase(name, count, colour))
        slots[letter] = phrases[-1]
        slots[letter.lower()] = definite_phrase(name, count, colour)
        slots[f"{letter}_coloured"] = indefinite_phrase(name, count, mention.colour)
        slots[f"{letter}_plain"] = indefinite_phrase(name, count)
        slots[f"{letter.lower()}_plain"] = definite_phrase(name, count)
        slots[f"{letter}_bare"] = definite_phrase(name, count, colour).removeprefix("the ")
    first, last = mentions[0].count > 1, mentions[-1].count > 1
    return slots | {
        "L": join_phrases(phrases),
        "rest": join_phrases(phrases[1:] or phrases),
        "Z": phrases[-1],
        "is": "are" if first else "is",
        "isZ": "are" if last else "is",
        "hides": "hide" if first else "hides",
        "peeks": "peek" if first else "peeks",
    }
