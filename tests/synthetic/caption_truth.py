"""Reading captions back and holding them against the recorded objects, with rules of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any

from polysem.synthetic.scenes.art import COLOURS
from polysem.synthetic.scenes.catalogue import name_noun

NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5}
_A, _B, _C = r"<([^<>]+)>", r"<([^<>]+)>", r"<([^<>]+)>"
_IS = r"(?: is| are)?"
_THERE = r"(?:there (?:is|are)|you can see)"


def untruths(entry: dict[str, Any], vocabulary: Iterable[str]) -> list[str]:
    """Everything the captions of a picture say that its objects do not bear out."""
    found = []
    for sentence in entry["sentences"]:
        text = sentence["raw"]
        marked, faults = _marked(text, entry["objects"], vocabulary)
        faults += _group_faults(marked, entry["objects"])
        faults += _relation_faults(marked, entry["objects"])
        found += [f"{text!r}: {fault}" for fault in faults]
    return found


def named(text: str, vocabulary: Iterable[str]) -> set[str]:
    """The kinds a caption names."""
    return set(re.findall(r"<([^<>]+)>", _marked(text, [], vocabulary)[0]))


def relations(text: str, vocabulary: Iterable[str]) -> int:
    """How many relations a caption states that can be read back."""
    marked, _ = _marked(text, [], vocabulary)
    return sum(len(re.findall(pattern, marked)) for pattern in RULES)


@cache
def _phrases(vocabulary: tuple[str, ...]) -> list[tuple[str, bool, re.Pattern[str]]]:
    """How each kind is named, once and several times; long names first, and an orange after every orange thing."""
    found = []
    colour = rf"(?P<colour>{'|'.join(COLOURS)})"
    for name in sorted(vocabulary, key=lambda name: (name in COLOURS, -len(name_noun(name)))):
        for several, form in ((True, name_noun(name, several=True)), (False, name_noun(name))):
            measure, of, stuff = form.partition(" of ")
            words = rf"{measure} of (?:{colour} )?{stuff}" if of else rf"(?:{colour} )?{form}"
            count = "(?P<count>two|three|four|five)" if several else "(?:an?|the)(?: big| small)?"
            found.append((name, several, re.compile(rf"\b(?:the )?{count} {words}(?![\w-])")))
    return found


def _marked(text: str, objects: list[dict[str, Any]], vocabulary: Iterable[str]) -> tuple[str, list[str]]:
    """The caption with every noun phrase as <kind>, and what is wrong about counts and colours."""
    faults = []
    marked = text[0].lower() + text[1:]
    for name, several, phrase in _phrases(tuple(vocabulary)):
        for match in reversed(list(phrase.finditer(marked))):
            there = [thing for thing in objects if thing["name"] == name]
            said = NUMBERS[match["count"]] if several else 1
            if len(there) != said:
                faults.append(f"{len(there)} × {name}, not {said}")
            if match["colour"] and any(thing["color"] != match["colour"] for thing in there):
                faults.append(f"{name} is not {match['colour']}")
            marked = marked[: match.start()] + f"<{name}>" + marked[match.end() :]
    for name, colour in re.findall(rf"<([^<>]+)> (?:is|are) ({'|'.join(COLOURS)})\.", marked):
        if any(thing["color"] != colour for thing in objects if thing["name"] == name):
            faults.append(f"{name} is not {colour}")
    return marked, faults


def _group_faults(marked: str, objects: list[dict[str, Any]]) -> list[str]:
    nouns = {"animals": "animal", "vehicles": "vehicle", "people": "person", "musical instruments": "instrument"}
    nouns["pieces of fruit"] = "fruit"
    faults = []
    for count, noun in re.findall(rf"\b(two|three|four|five) ({'|'.join(nouns)}|things)\b", marked):
        there = sum(noun == "things" or thing["group"] == nouns[noun] for thing in objects)
        if there != NUMBERS[count]:
            faults.append(f"{there} {noun}, not {count}")
    return faults


def _boxes(objects: list[dict[str, Any]], name: str) -> list[list[int]]:
    return [thing["box"] for thing in objects if thing["name"] == name]


def _middle(box: list[int], axis: int) -> float:
    return (box[axis] + box[axis + 2]) / 2


def _before(axis: int, objects: list[dict[str, Any]], a: str, b: str) -> bool:
    """Every a lies before every b along the axis."""
    return all(
        _middle(one, axis) < _middle(two, axis) and one[axis + 2] <= two[axis] + 0.2 * (two[axis + 2] - two[axis])
        for one in _boxes(objects, a)
        for two in _boxes(objects, b)
    )


def _left(objects: list[dict[str, Any]], a: str, b: str) -> bool:
    return _before(0, objects, a, b)


def _right(objects: list[dict[str, Any]], a: str, b: str) -> bool:
    return _before(0, objects, b, a)


def _above(objects: list[dict[str, Any]], a: str, b: str) -> bool:
    return _before(1, objects, a, b)


def _below(objects: list[dict[str, Any]], a: str, b: str) -> bool:
    return _before(1, objects, b, a)


def _front(objects: list[dict[str, Any]], a: str, b: str) -> bool:
    """a is drawn after b, and their boxes meet."""
    names = [thing["name"] for thing in objects]
    (one,), (two,) = _boxes(objects, a), _boxes(objects, b)
    meet = all(max(one[i], two[i]) < min(one[i + 2], two[i + 2]) for i in (0, 1))
    return meet and names.index(a) > names.index(b)


def _behind(objects: list[dict[str, Any]], a: str, b: str) -> bool:
    return _front(objects, b, a)


def _beside(objects: list[dict[str, Any]], a: str, b: str) -> bool:
    (one,), (two,) = _boxes(objects, a), _boxes(objects, b)
    gap = max(one[0], two[0]) - min(one[2], two[2])
    return gap <= 0.5 * max(one[2] - one[0], two[2] - two[0]) and max(one[1], two[1]) < min(one[3], two[3])


def _bigger(objects: list[dict[str, Any]], a: str, b: str) -> bool:
    (one,), (two,) = _boxes(objects, a), _boxes(objects, b)
    return (one[2] - one[0]) * (one[3] - one[1]) > (two[2] - two[0]) * (two[3] - two[1])


def _row(objects: list[dict[str, Any]], *names: str) -> bool:
    return all(_left(objects, a, b) for a, b in pairwise(names))


RULES = {
    **{
        pattern: rule
        for words, rule in (
            (r"(?:to the )?left of", _left),
            (r"(?:to the )?right of", _right),
            (r"(?:above|over)", _above),
            (r"(?:below|under)", _below),
            (r"in front of", _front),
            (r"(?:partly hidden |out from )?behind", _behind),
            (r"(?:next to|beside|close to)", _beside),
        )
        for pattern in (
            rf"{_A}{_IS}(?: peeks?)? {words} {_B}",
            rf"^(?P<fronted>){words} {_B} {_THERE} {_A}",
        )
    },
    rf"on the left (?:is|are) {_A}, on the right {_B}": _left,
    rf"{_A} on the left and {_B} on the right": _left,
    rf"{_A} to the left, {_B} to the right": _left,
    rf"{_A} partly hides? {_B}": _front,
    rf"{_A} in front and {_B} behind": _front,
    rf"{_A} and {_B} (?:side by side|close together)": _beside,
    rf"{_A} (?:is|are) (?:much )?bigger than {_B}": _bigger,
    rf"from left to right: {_A}, {_B} and {_C}": _row,
    rf"{_A}, then {_B} and then {_C}, from left": _row,
    rf"{_A} on the left, {_B} in the middle and {_C}": _row,
    rf"{_A}{_IS} between {_B} and {_C}": lambda objects, a, b, c: _row(objects, b, a, c),
    rf"between {_B} and {_C} there is {_A}": lambda objects, b, c, a: _row(objects, b, a, c),
    rf"{_B} and {_C} with {_A} in between": lambda objects, b, c, a: _row(objects, b, a, c),
    rf"{_A} and {_B} under {_C}": lambda objects, a, b, c: _above(objects, c, a) and _above(objects, c, b),
    rf"{_C} (?:above|over) {_A} and {_B}": lambda objects, c, a, b: _above(objects, c, a) and _above(objects, c, b),
}


def _relation_faults(marked: str, objects: list[dict[str, Any]]) -> list[str]:
    faults = []
    for pattern, rule in RULES.items():
        for match in re.finditer(pattern, marked):
            names = [name for name in match.groups() if name]
            if "fronted" in match.groupdict():
                names.reverse()
            if not rule(objects, *names):
                faults.append(f"{match[0]} does not hold")
    return faults
