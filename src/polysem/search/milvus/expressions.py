"""Filters in Milvus: an item's values as hashed statements, and a filter as an expression over them.

A fact is the hash of a statement such as "label equals 'dog'" or "year has a value", stored as a whole number: no text
of a user enters an expression. Equal numbers are one value whatever their type (1 and 1.0); booleans, numbers and texts
stay apart, and a list states each of its values: the statements follow `filters.evaluate`. For <, <=, > and >= the
least and the greatest number and text of a field are kept in `ranges`; texts as the hexadecimal digits of their first
bytes, which sort as the texts do.

Some tests Milvus cannot decide (`like`, a text that contains another). So there are two expressions: the possible one
holds for every item that passes, and maybe for more; the certain one holds only for items that do. Between the two,
`filters.matches` decides. Negations are pushed down to the tests, because what `not` makes of a missing value has
changed from one Milvus to the next.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Literal

from polysem.search.filters.parse import And, Compare, Field, Filter, In, IsNull, Not, Operator, Or, Value

Statement = Literal["has", "equals", "member", "is text", "has text", "has number"]
Kind = Literal["number", "text"]
End = Literal["least", "greatest"]
TEXT_BYTES = 32
"""Of a text, so many bytes are compared within Milvus."""
Expression = str | bool
"""An expression of Milvus, or True for all items, False for none."""

_OPPOSITE: Final = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_EXACT_INTEGER = 2**53


def hash_statement(statement: Statement, field: Field, value: Any = None) -> int:
    """The statement as a number of 63 bits: the expressions of milvus-lite know no negative ones."""
    if isinstance(value, float) and value.is_integer():  # one spelling for equal numbers
        value = int(value)
    return _hash(statement, field.built_in, field.keys, value)


def make_range_key(kind: Kind, end: End, field: Field) -> str:
    """The key of `ranges` for the least or greatest number or text of a field."""
    return f"{kind[0]}{end[0]}{_hash(kind, end, field.built_in, field.keys):x}"


def encode_text(text: str) -> str:
    """A text as `ranges` holds it."""
    return text.encode()[:TEXT_BYTES].hex()


def describe(item: Mapping[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Facts and ranges of an item, given as for `filters.matches`."""
    facts: set[int] = set()
    ranges: dict[str, Any] = {}
    built_in = {name: item.get(name) for name in ("id", "caption", "path", "side")}
    built_in["label"] = item.get("label") or None  # no labels are no value
    fields = [(Field((name,), built_in=True), value) for name, value in built_in.items() if value is not None]
    for field, value in (*fields, *_metadata_fields((), item.get("metadata", {}))):
        facts.add(hash_statement("has", field))
        listed = isinstance(value, list | tuple)
        each = list(value) if listed else [value]
        scalars = [one for one in each if isinstance(one, str | bool | int | float)]
        facts.update(hash_statement("equals", field, one) for one in scalars)
        if listed:
            facts.update(hash_statement("member", field, one) for one in scalars if not isinstance(one, str))
        elif isinstance(value, str):
            facts.add(hash_statement("is text", field))
        if numbers := [one for one in scalars if isinstance(one, int | float) and not isinstance(one, bool)]:
            facts.add(hash_statement("has number", field))
            ranges[make_range_key("number", "least", field)] = min(numbers)
            ranges[make_range_key("number", "greatest", field)] = max(numbers)
        if texts := [one for one in scalars if isinstance(one, str)]:
            facts.add(hash_statement("has text", field))
            ranges[make_range_key("text", "least", field)] = encode_text(min(texts))
            ranges[make_range_key("text", "greatest", field)] = encode_text(max(texts))
    return sorted(facts), ranges


def _metadata_fields(keys: tuple[str, ...], values: Mapping[str, Any]) -> Iterator[tuple[Field, Any]]:
    for key, value in values.items():
        if value is not None:
            yield Field((*keys, key)), value
        if isinstance(value, Mapping):
            yield from _metadata_fields((*keys, key), value)


def _hash(*parts: Any) -> int:
    text = json.dumps(parts, ensure_ascii=False)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def express_possible(node: Filter) -> Expression:
    """Holds for every item that passes the filter."""
    return _where(node, True, False)


def express_certain(node: Filter) -> Expression:
    """Holds for no item that does not."""
    return _where(node, True, True)


def express_complement(node: Filter) -> Expression:
    """Holds for every item that `express_certain` does not hold for, though it may pass."""
    return _where(node, False, False)


def express_any_equal(field: Field, values: Sequence[Value]) -> str:
    """Items whose field equals one of the values."""
    facts = dict.fromkeys(hash_statement("equals", field, value) for value in values)
    return f"array_contains_any(facts, [{', '.join(map(str, facts))}])"


def _where(node: Filter, wanted: bool, sure: bool) -> Expression:
    """Items for which the test comes out as wanted: surely, or possibly."""
    match node:
        case Not(part):
            return _where(part, not wanted, sure)
        case And(parts):
            return join("and" if wanted else "or", *(_where(part, wanted, sure) for part in parts))
        case Or(parts):
            return join("or" if wanted else "and", *(_where(part, wanted, sure) for part in parts))
        case IsNull(field):
            return _has("has", field, not wanted)
        case In(field, values):
            return express_any_equal(field, values) if wanted else f"(not {express_any_equal(field, values)})"
        case Compare(field, "=", value):
            return _has("equals", field, wanted, value)
        case Compare(field, "like", _):
            return _undecided(_has("has text", field, wanted), wanted, sure)
        case Compare(field, "contains", value):
            return _contains(field, value, wanted, sure)
        case Compare(field, operator, value):
            return _range(field, operator, value, wanted, sure)


def _has(statement: Statement, field: Field, wanted: bool, value: Value | None = None) -> str:
    test = f"array_contains(facts, {hash_statement(statement, field, value)})"
    return test if wanted else f"(not {test})"


def _undecided(needed: str, wanted: bool, sure: bool) -> Expression:
    """A test that Milvus cannot make, but which fails without what is `needed`."""
    return needed if wanted != sure else not sure


def _contains(field: Field, value: Value, wanted: bool, sure: bool) -> Expression:
    if not isinstance(value, str):
        return _has("member", field, wanted, value)
    if wanted == sure:  # a text that is equal contains it, and so does a list that has it
        return _has("equals", field, wanted, value)
    parts = (_has("equals", field, wanted, value), _has("is text", field, wanted))
    return join("or" if wanted else "and", *parts)


def _range(field: Field, operator: Operator, value: Value, wanted: bool, sure: bool) -> Expression:
    """A field holds if its least or greatest value does."""
    if isinstance(value, bool):
        return _undecided(_has("has", field, wanted), wanted, sure)
    kind: Kind = "text" if isinstance(value, str) else "number"
    there: Statement = "has text" if isinstance(value, str) else "has number"
    sign = operator if wanted else _OPPOSITE[operator]
    if isinstance(value, str):
        literal = f'"{encode_text(value)}"'
        if len(value.encode()) >= TEXT_BYTES:  # equal beginnings tell nothing
            sign = sign[0] if sure else sign[0] + "="
    elif not math.isfinite(value) or abs(value) >= _EXACT_INTEGER:
        return _undecided(_has(there, field, wanted), wanted, sure)
    else:
        literal = repr(value)
    key = make_range_key(kind, "least" if operator[0] == "<" else "greatest", field)
    test = f'ranges["{key}"] {sign} {literal}'
    return f"({test})" if wanted else join("or", _has(there, field, False), test)


def join(word: Literal["and", "or"], *parts: Expression) -> Expression:
    absorbing = word == "or"
    if any(part is absorbing for part in parts):
        return absorbing
    texts = [part for part in parts if isinstance(part, str)]
    if not texts:
        return not absorbing
    return texts[0] if len(texts) == 1 else "(" + f" {word} ".join(texts) + ")"
