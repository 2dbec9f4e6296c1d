"""A filter applied to one item in Python: slow, obvious, and what the tests hold the SQL against."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from polysem.search.filters.parse import And, Compare, Field, Filter, In, IsNull, Not, Or, Value, parse

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def matches(given: Filter | str, item: Mapping[str, Any]) -> bool:
    """Whether an item passes. Its keys are id, label (a list), caption, path, side and metadata (a dict)."""
    node = parse(given) if isinstance(given, str) else given
    match node:
        case Not(part):
            return not matches(part, item)
        case And(parts):
            return all(matches(part, item) for part in parts)
        case Or(parts):
            return any(matches(part, item) for part in parts)
    value = _value(node.field, item)
    each = value if isinstance(value, list | tuple) else [value]
    match node:
        case IsNull():
            return value is None
        case In(_, values):
            return any(_holds(one, "=", wanted) for one in each for wanted in values)
        case Compare(_, "contains", str(wanted)) if isinstance(value, str):
            return wanted in value
        case Compare(_, "contains", wanted):
            return isinstance(value, list | tuple) and any(_holds(one, "=", wanted) for one in each)
        case Compare(_, sign, wanted):
            return any(_holds(one, sign, wanted) for one in each)


def _value(field: Field, item: Mapping[str, Any]) -> Any:
    if field.built_in:
        # No labels are no value, unlike an empty list that the user has put into the metadata.
        return item.get(field.keys[0]) or None if field.keys == ("label",) else item.get(field.keys[0])
    value: Any = item.get("metadata", {})
    for key in field.keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _holds(found: Any, sign: str, wanted: Value) -> bool:
    if not isinstance(found, str | bool | int | float) or _type(found) is not _type(wanted):
        return False
    if sign == "like":
        # Of a LIKE pattern: % is any text, _ one sign, and a backslash stands before a sign that is meant.
        parts = re.findall(r"\\.|.", str(wanted), re.DOTALL)
        pattern = "".join({"%": ".*", "_": "."}.get(part, re.escape(part[-1])) for part in parts)
        return re.fullmatch(pattern, str(found), re.IGNORECASE | re.ASCII | re.DOTALL) is not None
    return _ORDER[sign](found, wanted)


def _type(value: Value) -> type:
    return bool if isinstance(value, bool) else str if isinstance(value, str) else float
