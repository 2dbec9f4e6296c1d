"""Random items and random filters that meet each other often."""

from __future__ import annotations

import random
from typing import Any

LETTERS = "aA%_\\'\"é\n𝄞{"
NUMBERS = [0, 1, -1, 2, 3, 0.5, -0.5, 1.0, 0.1, 1e300, -1e-7, 2**53, 2**53 + 1, -(2**63), 2**63 - 1]
KEYS = ["a", "größe", "x.y", "label", "it's"]
LONG = "the same beginning of a text that is longer than what is compared: "


def random_text(rng: random.Random) -> str:
    if rng.random() < 0.1:
        return LONG + rng.choice("abc")
    return "".join(rng.choice(LETTERS) for _ in range(rng.randrange(3)))


def random_scalar(rng: random.Random) -> Any:
    return rng.choice(
        [random_text(rng), random_text(rng), rng.choice(NUMBERS), rng.choice(NUMBERS), rng.random() < 0.5]
    )


def random_value(rng: random.Random, depth: int = 2) -> Any:
    chance = rng.random()
    if depth and chance < 0.2:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if depth and chance < 0.35:
        return {rng.choice(KEYS): random_value(rng, depth - 1) for _ in range(rng.randrange(3))}
    return None if chance > 0.95 else random_scalar(rng)


def random_item(rng: random.Random, number: int) -> dict[str, Any]:
    return {
        "id": f"{random_text(rng)}{number}",
        "label": [random_text(rng) for _ in range(rng.randrange(3))],
        "caption": None if rng.random() < 0.3 else random_text(rng),
        "path": None if rng.random() < 0.3 else random_text(rng),
        "side": rng.choice(["image", "text"]),
        "metadata": {rng.choice(KEYS): random_value(rng) for _ in range(6)},
    }


def random_filter(rng: random.Random, depth: int = 2) -> str:
    """A filter in words."""
    chance = rng.random()
    if depth and chance < 0.5:
        inner = [random_filter(rng, depth - 1) for _ in range(2)]
        return rng.choice([f"({inner[0]} and {inner[1]})", f"({inner[0]} or {inner[1]})", f"not {inner[0]}"])
    return _test(rng)


def _test(rng: random.Random) -> str:
    name = rng.choice(["label", "caption", "path", "side", "metadata.label", *(f'"{key}"' for key in KEYS)])
    if rng.random() < 0.15:
        name = '"' + '"."'.join(rng.choice(KEYS) for _ in range(2)) + '"'
    kind = rng.randrange(6)
    if kind == 0:
        return f"{name} is {rng.choice(['null', 'not null'])}"
    if kind == 1:
        values = ", ".join(written(random_scalar(rng)) for _ in range(rng.randrange(1, 4)))
        return f"{name} {rng.choice(['in', 'not in'])} ({values})"
    if kind == 2:
        pattern = random_text(rng)
        return f"{name} like {written(pattern.replace(chr(92), chr(92) * 2) if pattern.endswith(chr(92)) else pattern)}"
    if kind == 3:
        return f"{name} {rng.choice(['contains', 'not contains'])} {written(random_scalar(rng))}"
    if kind == 4:
        ordered = rng.choice([random_text(rng), rng.choice(NUMBERS), rng.choice(NUMBERS)])
        return f"{name} {rng.choice(['<', '<=', '>', '>='])} {written(ordered)}"
    return f"{name} {rng.choice(['=', '!='])} {written(random_scalar(rng))}"


def written(value: object) -> str:
    """A value as a filter writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)
