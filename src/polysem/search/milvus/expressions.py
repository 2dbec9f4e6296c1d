"""A filter as an expression of Milvus: digits, quoted hexadecimal digits and fixed words, nothing that a user wrote.

Some tests Milvus cannot decide (`like`, a text that contains another). So there are two expressions: `possible` holds
for every item that passes, and maybe for more; `certain` holds only for items that do. Between the two,
`filters.matches` decides. Negations are carried down to the tests, because what `not` makes of a value that is not
there has changed from one Milvus to the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

from polysem.search.filters import And, Compare, Field, Filter, In, IsNull, Not, Or
from polysem.search.filters.tree import Operator, Value
from polysem.search.milvus.filter_fields import TEXT_BYTES, Kind, Statement, fact, range_key, text_range

Expression = str | bool
"""A text for Milvus, or True for all items, False for none."""

_OPPOSITE: Final = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_EXACT_INTEGER = 2**53


def possible(node: Filter) -> Expression:
    """Holds for every item that passes the filter."""
    return _where(node, True, False)


def certain(node: Filter) -> Expression:
    """Holds for no item that does not."""
    return _where(node, True, True)


def complement(node: Filter) -> Expression:
    """Holds for every item that `certain` does not hold for, though it may pass."""
    return _where(node, False, False)


def all_of(*parts: Expression) -> Expression:
    return _joined("and", parts)


def any_of(*parts: Expression) -> Expression:
    return _joined("or", parts)


def any_equals(field: Field, values: Sequence[Value]) -> str:
    """Items whose field equals one of the values."""
    return _any_fact(dict.fromkeys(fact("equals", field, value) for value in values))


def _where(node: Filter, wanted: bool, sure: bool) -> Expression:
    """Items for which the test comes out as wanted: surely, or possibly."""
    match node:
        case Not(part):
            return _where(part, not wanted, sure)
        case And(parts):
            return _joined("and" if wanted else "or", [_where(part, wanted, sure) for part in parts])
        case Or(parts):
            return _joined("or" if wanted else "and", [_where(part, wanted, sure) for part in parts])
        case IsNull(field):
            return _has("has", field, not wanted)
        case In(field, values):
            return any_equals(field, values) if wanted else f"(not {any_equals(field, values)})"
        case Compare(field, "=", value):
            return _has("equals", field, wanted, value)
        case Compare(field, "like", _):
            return _undecided(_has("has text", field, wanted), wanted, sure)
        case Compare(field, "contains", value):
            return _contains(field, value, wanted, sure)
        case Compare(field, operator, value):
            return _range(field, operator, value, wanted, sure)


def _has(statement: Statement, field: Field, wanted: bool, value: Value | None = None) -> str:
    test = f"array_contains(facts, {fact(statement, field, value)})"
    return test if wanted else f"(not {test})"


def _any_fact(facts: dict[int, None]) -> str:
    return f"array_contains_any(facts, [{', '.join(map(str, facts))}])"


def _undecided(needed: str, wanted: bool, sure: bool) -> Expression:
    """A test that Milvus cannot make, but which fails without what is `needed`."""
    return needed if wanted != sure else not sure


def _contains(field: Field, value: Value, wanted: bool, sure: bool) -> Expression:
    if not isinstance(value, str):
        return _has("member", field, wanted, value)
    if wanted == sure:  # a text that is equal contains it, and so does a list that has it
        return _has("equals", field, wanted, value)
    parts = (_has("equals", field, wanted, value), _has("is text", field, wanted))
    return any_of(*parts) if wanted else all_of(*parts)


def _range(field: Field, operator: Operator, value: Value, wanted: bool, sure: bool) -> Expression:
    """A field holds if its least or greatest value does."""
    if isinstance(value, bool):
        return _undecided(_has("has", field, wanted), wanted, sure)
    kind: Kind = "text" if isinstance(value, str) else "number"
    there: Statement = "has text" if isinstance(value, str) else "has number"
    sign = operator if wanted else _OPPOSITE[operator]
    if isinstance(value, str):
        literal = f'"{text_range(value)}"'
        if len(value.encode()) >= TEXT_BYTES:  # equal beginnings tell nothing
            sign = sign[0] if sure else sign[0] + "="
    elif not math.isfinite(value) or abs(value) >= _EXACT_INTEGER:
        return _undecided(_has(there, field, wanted), wanted, sure)
    else:
        literal = repr(value)
    key = range_key(kind, "least" if operator[0] == "<" else "greatest", field)
    test = f'ranges["{key}"] {sign} {literal}'
    return f"({test})" if wanted else any_of(_has(there, field, False), test)


def _joined(word: Literal["and", "or"], parts: Sequence[Expression]) -> Expression:
    absorbing = word == "or"
    if any(part is absorbing for part in parts):
        return absorbing
    texts = [part for part in parts if isinstance(part, str)]
    if not texts:
        return not absorbing
    return texts[0] if len(texts) == 1 else "(" + f" {word} ".join(texts) + ")"
