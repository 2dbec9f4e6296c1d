"""English for things: articles, plurals, counts and lists."""

from __future__ import annotations

import re
from collections.abc import Sequence

from polysem.synthetic.scenes.catalogue import CATALOGUE

_MEASURED: dict[str, list[str]] = CATALOGUE["measured"]
_IRREGULAR: dict[str, str] = CATALOGUE["irregular_plurals"]
UNIQUE = frozenset({"sun", "moon"})
"""There is only one of these, in the world and in a picture."""
NUMBERS = ("no", "one", "two", "three", "four", "five")


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
    return (
        f"the {NUMBERS[count]} {name_noun(name, True, colour)}"
        if count > 1
        else f"the {name_noun(name, False, colour)}"
    )


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
