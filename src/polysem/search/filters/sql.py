"""A filter as a condition on the table `items`. Every name and value of the user is a bound parameter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from polysem.search.filters.parse import And, Compare, Field, Filter, In, IsNull, Not, Or, Value, parse

# A fixed list: a tree built by hand cannot bring SQL along either.
_SIGNS = {sign: sign for sign in ("=", "<", "<=", ">", ">=")}


def to_sql(given: Filter | str) -> tuple[str, tuple[Any, ...]]:
    """A term that is true or false, never NULL, and its parameters in order."""
    bound: list[Any] = []
    condition = _condition(parse(given) if isinstance(given, str) else given, bound)
    return condition, tuple(bound)


def _condition(node: Filter, bound: list[Any]) -> str:
    """A term that may stand beside any operator."""
    match node:
        case Not(part):
            return f"(NOT {_condition(part, bound)})"
        case And(parts) | Or(parts):
            word = " AND " if isinstance(node, And) else " OR "
            return "(" + word.join(_condition(part, bound) for part in parts) + ")"
        case IsNull(field) if field.built_in:
            return "(items.labels = '[]')" if field.keys == ("label",) else f"(items.{field.keys[0]} IS NULL)"
        case IsNull(field):
            bound.append(_path(field))
            return "(ifnull(json_type(items.metadata, ?), 'null') = 'null')"
        case In(field, values):
            return _any(field, "=", values, bound)
        case Compare(field, "contains", value):
            return _contains(field, value, bound)
        case Compare(field, operator, value):
            return _any(field, operator, (value,), bound)


def _any(field: Field, operator: str, values: tuple[Value, ...], bound: list[Any]) -> str:
    """Whether the value, or any of a list, compares so with one of `values`."""
    if field.built_in:
        name, texts = field.keys[0], [value for value in values if isinstance(value, str)]
        if not texts:
            return "0"
        if name == "label":
            return f"(items.key IN (SELECT item FROM labels WHERE {_test('labels.label', operator, texts, bound)}))"
        test = _test(f"items.{name}", operator, texts, bound)
        # Only what may be NULL is wrapped: a wrapped column is not looked up in its index.
        return f"ifnull({test}, 0)" if name in ("caption", "path") else f"({test})"
    path = _path(field)
    bound += [path, path]
    # Only a list is opened: that takes a table of its values for each item.
    listed = f"CASE each.type {_cases('each.value', [], operator, values, bound)} END"
    each = f"EXISTS (SELECT 1 FROM json_each(items.metadata, ?) AS each WHERE {listed})"
    single = _cases("json_extract(items.metadata, ?)", [path], operator, values, bound)
    return f"(CASE json_type(items.metadata, ?) WHEN 'array' THEN {each} {single} ELSE 0 END)"


def _cases(value: str, path: list[str], operator: str, values: tuple[Value, ...], bound: list[Any]) -> str:
    """The tests of a value for each type it may have: JSON keeps 1, true and '1' apart and SQLite would not.

    path: the parameters of `value`.
    """
    cases = []
    for name, kind in (("integer", (int, float)), ("real", (int, float)), ("text", str)):
        if own := [each for each in values if isinstance(each, kind) and not isinstance(each, bool)]:
            bound += path
            cases.append(f"WHEN '{name}' THEN {_test(value, operator, own, bound)}")
    cases += [f"WHEN '{str(truth).lower()}' THEN 1" for truth in (True, False) if any(each is truth for each in values)]
    return " ".join(cases)


def _test(column: str, operator: str, values: Sequence[Value], bound: list[Any]) -> str:
    if operator == "=" and len(values) > 1:
        bound.append(json.dumps(values, ensure_ascii=False))  # one parameter, however long the list
        return f"{column} IN (SELECT value FROM json_each(?))"
    # As the metadata does, a fraction goes through SQLite's own reading of digits: both ends round alike.
    fraction = isinstance(values[0], float)
    bound.append(json.dumps(values[0]) if fraction else values[0])
    mark = "json_extract(?, '$')" if fraction else "?"
    return f"{column} LIKE {mark} ESCAPE '\\'" if operator == "like" else f"{column} {_SIGNS[operator]} {mark}"


def _contains(field: Field, value: Value, bound: list[Any]) -> str:
    if field.built_in and field.keys == ("label",):
        return _any(field, "=", (value,), bound)
    if field.built_in:
        bound += [value] if isinstance(value, str) else []
        return f"ifnull(instr(items.{field.keys[0]}, ?) > 0, 0)" if isinstance(value, str) else "0"
    inside, path = "0", _path(field)
    bound.append(path)
    if isinstance(value, str):
        bound += [path, value]
        inside = "instr(json_extract(items.metadata, ?), ?) > 0"
    held = _any(field, "=", (value,), bound)
    return f"(CASE json_type(items.metadata, ?) WHEN 'text' THEN {inside} WHEN 'array' THEN {held} ELSE 0 END)"


def _path(field: Field) -> str:
    """A JSON path. Keys hold no double quotes and no backslashes: neither filters nor metadata accept them."""
    return "$" + "".join(f'."{key}"' for key in field.keys)
