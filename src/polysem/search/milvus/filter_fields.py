"""What filters may ask of an item, as whole numbers for Milvus to look up: no text of a user enters an expression.

A fact is the hash of a statement such as "label equals 'dog'" or "year has a value". Equal numbers are one value
whatever their type (1 and 1.0), truth values, numbers and texts stay apart, and a list states each of its values: the
statements follow `filters.evaluate`. For <, <=, > and >= the least and the greatest number and text of a field are kept
in `ranges`; texts as the hexadecimal digits of their first bytes, which sort as the texts do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Literal

from polysem.search.filters import Field

Statement = Literal["has", "equals", "member", "is text", "has text", "has number"]
Kind = Literal["number", "text"]
End = Literal["least", "greatest"]
TEXT_BYTES = 32
"""Of a text, so many bytes are compared within Milvus."""


def fact(statement: Statement, field: Field, value: Any = None) -> int:
    """The statement as a number of 63 bits: the expressions of milvus-lite know no negative ones."""
    return _hash(statement, field.built_in, field.keys, _plain(value))


def range_key(kind: Kind, end: End, field: Field) -> str:
    """Under which key of `ranges` the least or greatest number or text of a field is."""
    return f"{kind[0]}{end[0]}{_hash(kind, end, field.built_in, field.keys):x}"


def text_range(text: str) -> str:
    """A text as `ranges` holds it."""
    return text.encode()[:TEXT_BYTES].hex()


def describe(item: Mapping[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Facts and ranges of an item, given as for `filters.matches`."""
    facts: set[int] = set()
    ranges: dict[str, Any] = {}
    for field, value in _fields(item):
        facts.add(fact("has", field))
        listed = isinstance(value, list | tuple)
        each = list(value) if listed else [value]
        scalars = [one for one in each if isinstance(one, str | bool | int | float)]
        facts.update(fact("equals", field, one) for one in scalars)
        if listed:
            facts.update(fact("member", field, one) for one in scalars if not isinstance(one, str))
        elif isinstance(value, str):
            facts.add(fact("is text", field))
        if numbers := [one for one in scalars if isinstance(one, int | float) and not isinstance(one, bool)]:
            facts.add(fact("has number", field))
            ranges[range_key("number", "least", field)] = min(numbers)
            ranges[range_key("number", "greatest", field)] = max(numbers)
        if texts := [one for one in scalars if isinstance(one, str)]:
            facts.add(fact("has text", field))
            ranges[range_key("text", "least", field)] = text_range(min(texts))
            ranges[range_key("text", "greatest", field)] = text_range(max(texts))
    return sorted(facts), ranges


def _fields(item: Mapping[str, Any]) -> Iterator[tuple[Field, Any]]:
    """Every name a filter could give, with its value, where there is one."""
    for name in ("id", "caption", "path", "side"):
        if item.get(name) is not None:
            yield Field((name,), built_in=True), item[name]
    if item.get("label"):
        yield Field(("label",), built_in=True), item["label"]
    yield from _inside((), item.get("metadata", {}))


def _inside(keys: tuple[str, ...], values: Mapping[str, Any]) -> Iterator[tuple[Field, Any]]:
    for key, value in values.items():
        if value is not None:
            yield Field((*keys, key)), value
        if isinstance(value, Mapping):
            yield from _inside((*keys, key), value)


def _plain(value: Any) -> Any:
    """One spelling for equal numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _hash(*parts: Any) -> int:
    text = json.dumps(parts, ensure_ascii=False)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
