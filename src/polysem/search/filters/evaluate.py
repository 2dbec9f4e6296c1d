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
        case IsNull(field):
            return _value(field, item) is None
        case In(field, values):
            return any(_holds(each, "=", value) for each in _each(field, item) for value in values)
        case Compare(field, "contains", value):
            return _contains(_value(field, item), value)
        case Compare(field, sign, value):
            return any(_holds(each, sign, value) for each in _each(field, item))


def _value(field: Field, item: Mapping[str, Any]) -> Any:
    if field.built_in:
        # No labels are no value, unlike an empty list that the user has put into the metadata.
        return item.get(field.keys[0]) or None if field.keys == ("label",) else item.get(field.keys[0])
    found: Any = item.get("metadata", {})
    for key in field.keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _each(field: Field, item: Mapping[str, Any]) -> list[Any]:
    found = _value(field, item)
    return list(found) if isinstance(found, list | tuple) else [found]


def _contains(found: Any, value: Value) -> bool:
    if isinstance(found, list | tuple):
        return any(_holds(each, "=", value) for each in found)
    return isinstance(found, str) and isinstance(value, str) and value in found


def _holds(found: Any, sign: str, value: Value) -> bool:
    if _type(found) != _type(value):
        return False
    if sign == "like":
        return re.fullmatch(_pattern(str(value)), found, re.IGNORECASE | re.ASCII | re.DOTALL) is not None
    return _ORDER[sign](found, value)


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "other"


def _pattern(like: str) -> str:
    """The regular expression of a LIKE pattern."""
    parts = re.findall(r"\\.|.", like, re.DOTALL)
    return "".join({"%": ".*", "_": "."}.get(part, re.escape(part[-1])) for part in parts)
