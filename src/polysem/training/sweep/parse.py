"""`path.to.key=a,b,c`: the values that a key is to have, one after the other."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from polysem.errors import ConfigError
from polysem.recipes.loading import read_value

_OPEN, _CLOSE, _QUOTES = "[{", "]}", "\"'"
_LONGEST = 100


@dataclass(frozen=True)
class Axis:
    """A key of the recipe, and its values in the order given."""

    key: str
    values: tuple[Any, ...]


def axis(given: str) -> Axis:
    """Commas part the values; those within brackets or quotes belong to one. Values are written as in YAML."""
    key, equals, text = given.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(
            f"--set takes path.to.key=value, or several values with commas; got {given!r}. "
            "Example: --set optimiser.lr=1e-4,1e-3"
        )
    pieces = [piece.strip() for piece in _parted(text, given)]
    if not all(pieces):
        missing = "there is no value" if len(pieces) == 1 else "there is a comma with no value beside it"
        raise ConfigError(f"--set {given}: {missing}. Write null for nothing, '' for an empty text.")
    values = tuple(read_value(piece, given) for piece in pieces)
    known: dict[str, str] = {}
    for piece, value in zip(pieces, values, strict=True):
        same = known.get(canonical(value))
        if same is not None:
            twice = f"{piece} stands there twice" if same == piece else f"{same} and {piece} are the same value"
            raise ConfigError(f"--set {given}: {twice}. Give each value once; repetitions are --seeds.")
        known[canonical(value)] = piece
    return Axis(key, values)


def _parted(text: str, given: str) -> Iterator[str]:
    """The text between commas that are outside of brackets and quotes."""
    piece, depth, quote = "", 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in _QUOTES and (depth or not piece.strip()):  # the apostrophe of "don't" opens nothing
            quote = sign
        elif sign in _OPEN:
            depth += 1
        elif sign in _CLOSE:
            depth -= 1
        elif sign == "," and depth == 0:
            yield piece
            piece = ""
            continue
        piece += sign
    if depth or quote:
        raise ConfigError(f"--set {given}: a bracket or quote is opened and not closed, or the other way round.")
    yield piece


def canonical(value: Any) -> str:
    """The same text for the same value, however it was written: 1, 1.0 and 1e0."""
    return json.dumps(_plain(value), sort_keys=True, default=str, ensure_ascii=False)


def shown(value: Any) -> str:
    """For people."""
    return value if isinstance(value, str) else canonical(value)


def override(key: str, value: Any) -> str:
    """As `recipes.load` takes it: JSON is YAML too."""
    return f"{key}={json.dumps(value, default=str, ensure_ascii=False)}"


def name(values: Mapping[str, Any]) -> str:
    """`key=value,…` of a point of the sweep, for people."""
    return ",".join(f"{key}={shown(value)}" for key, value in values.items())


def folder_name(values: Mapping[str, Any]) -> str:
    """The name, as a folder may be called, whatever the order of the keys; with a digest where signs had to go, so that
    two never share one."""
    full = name(dict(sorted(values.items())))
    safe = re.sub(r"[^\w.,=+-]", "_", full)[:_LONGEST]
    if safe == full:
        return safe
    return f"{safe}-{hashlib.sha256(full.encode()).hexdigest()[:8]}"


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return value
