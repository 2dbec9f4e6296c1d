"""English for things: articles, plurals, counts and lists."""

from __future__ import annotations

import re
from collections.abc import Sequence

# What one says for a single one, and for several, where the name alone does not do.
_MEASURED = {
    "corn": ("ear of corn", "ears of corn"),
    "broccoli": ("head of broccoli", "heads of broccoli"),
    "garlic": ("bulb of garlic", "bulbs of garlic"),
    "grapes": ("bunch of grapes", "bunches of grapes"),
    "cherries": ("pair of cherries", "pairs of cherries"),
    "blueberries": ("pair of blueberries", "pairs of blueberries"),
    "watermelon": ("slice of watermelon", "slices of watermelon"),
    "bread": ("loaf of bread", "loaves of bread"),
    "pancakes": ("stack of pancakes", "stacks of pancakes"),
    "cheese": ("piece of cheese", "pieces of cheese"),
    "fries": ("bag of fries", "bags of fries"),
    "pizza": ("slice of pizza", "slices of pizza"),
    "salad": ("bowl of salad", "bowls of salad"),
    "popcorn": ("box of popcorn", "boxes of popcorn"),
    "noodles": ("bowl of noodles", "bowls of noodles"),
    "spaghetti": ("bowl of spaghetti", "bowls of spaghetti"),
    "sushi": ("piece of sushi", "pieces of sushi"),
    "honey": ("jar of honey", "jars of honey"),
    "ice cream": ("ice cream cone", "ice cream cones"),
    "milk": ("glass of milk", "glasses of milk"),
    "coffee": ("cup of coffee", "cups of coffee"),
    "juice": ("carton of juice", "cartons of juice"),
    "soda": ("cup of soda", "cups of soda"),
    "bubble tea": ("cup of bubble tea", "cups of bubble tea"),
    "yarn": ("ball of yarn", "balls of yarn"),
    "bouquet": ("bouquet of flowers", "bouquets of flowers"),
    "jeans": ("pair of jeans", "pairs of jeans"),
    "gloves": ("pair of gloves", "pairs of gloves"),
    "sunglasses": ("pair of sunglasses", "pairs of sunglasses"),
    "coral": ("piece of coral", "pieces of coral"),
    "slice of cake": ("slice of cake", "slices of cake"),
    "person doing yoga": ("person doing yoga", "people doing yoga"),
    "person walking": ("person walking", "people walking"),
}
_UNCHANGED = frozenset({"sheep", "deer", "fish", "bison", "shrimp", "squid", "buffalo"})
_IRREGULAR = {
    **{"mouse": "mice", "goose": "geese", "wolf": "wolves", "loaf": "loaves", "leaf": "leaves", "person": "people"},
    **{"ox": "oxen", "die": "dice", "snowman": "snowmen", "potato": "potatoes", "tomato": "tomatoes"},
    **{"mango": "mangoes", "cactus": "cacti", "scarf": "scarves"},
}
UNIQUE = frozenset({"sun", "moon"})
"""There is only one of these, in the world and in a picture."""
_NUMBERS = ("no", "one", "two", "three", "four", "five")


def singular(name: str, colour: str | None = None) -> str:
    """What one of them is called: `corn` is an ear of corn."""
    return _coloured(_MEASURED[name][0] if name in _MEASURED else name, colour)


def plural(name: str, colour: str | None = None) -> str:
    """What several of them are called."""
    return _coloured(_MEASURED[name][1] if name in _MEASURED else _several(name), colour)


def _coloured(words: str, colour: str | None) -> str:
    """The colour belongs to the stuff, not to its measure: a pair of blue jeans."""
    if colour is None:
        return words
    measure, of, stuff = words.partition(" of ")
    return f"{measure} of {colour} {stuff}" if of else f"{colour} {words}"


def _several(name: str) -> str:
    before, space, head = name.rpartition(" ")
    if head in _UNCHANGED or head.endswith("fish"):  # starfish and pufferfish too
        return name
    if head in _IRREGULAR:
        return before + space + _IRREGULAR[head]
    if re.search(r"(s|x|z|ch|sh)$", head):
        return name + "es"
    if re.search(r"[^aeiou]y$", head):
        return name[:-1] + "ies"
    return name + "s"


def article(phrase: str) -> str:
    """`a` or `an`, by sound where the spelling misleads."""
    if re.match(r"(uni|use|eu|one\b|ukulele)", phrase, re.IGNORECASE):
        return "a"
    return "an" if phrase[0].lower() in "aeiou" or phrase.startswith(("hour", "honest")) else "a"


def number(count: int) -> str:
    """A small count as a word."""
    return _NUMBERS[count]


def some(name: str, count: int = 1, colour: str | None = None) -> str:
    """`a red apple`, `two dogs`, `the sun`."""
    if count > 1:
        return f"{number(count)} {plural(name, colour)}"
    words = singular(name, colour)
    return f"the {words}" if name in UNIQUE else f"{article(words)} {words}"


def the(name: str, count: int = 1, colour: str | None = None) -> str:
    """`the red apple`, `the two dogs`."""
    return f"the {number(count)} {plural(name, colour)}" if count > 1 else f"the {singular(name, colour)}"


def listed(phrases: Sequence[str]) -> str:
    """`a dog, a cat and two trees`."""
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"


def sentence(text: str) -> str:
    """A capital at the start and a full stop at the end."""
    tidy = re.sub(r"\s+([,.!?:])", r"\1", re.sub(r"\s+", " ", text)).strip()
    return tidy[0].upper() + tidy[1:] + ("" if tidy[-1] in ".!?" else ".")


def tokens(text: str) -> list[str]:
    """Lower-case words without punctuation, as the Karpathy splits hold them."""
    return re.findall(r"[a-z0-9]+(?:['’-][a-z0-9]+)*", text.lower())
