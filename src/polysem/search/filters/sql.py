"""A filter as a condition on the table `items`. Every name and value of the user is a bound parameter."""

from __future__ import annotations

import json
from typing import Any

from polysem.search.filters.parse import And, Compare, Field, Filter, In, IsNull, Not, Or, Value, parse


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
        case And(parts):
            return _joined("AND", parts, bound)
        case Or(parts):
            return _joined("OR", parts, bound)
        case IsNull(field):
            return _is_null(field, bound)
        case In(field, values):
            return _any(field, "=", values, bound)
        case Compare(field, "contains", value):
            return _contains(field, value, bound)
        case Compare(field, operator, value):
            return _any(field, operator, (value,), bound)


def _joined(word: str, parts: tuple[Filter, ...], bound: list[Any]) -> str:
    return "(" + f" {word} ".join(_condition(part, bound) for part in parts) + ")"


def _is_null(field: Field, bound: list[Any]) -> str:
    if not field.built_in:
        bound.append(_path(field))
        return "(ifnull(json_type(items.metadata, ?), 'null') = 'null')"
    return "(items.labels = '[]')" if field.keys == ("label",) else f"(items.{field.keys[0]} IS NULL)"


def _any(field: Field, operator: str, values: tuple[Value, ...], bound: list[Any]) -> str:
    """Whether the value, or any of a list, compares so with one of `values`."""
    if field.built_in:
        texts = [value for value in values if isinstance(value, str)]
        return _built_in(field.keys[0], operator, texts, bound) if texts else "0"
    bound.append(_path(field))
    return f"(CASE json_type(items.metadata, ?) {_by_type(field, operator, values, bound)} ELSE 0 END)"


def _by_type(field: Field, operator: str, values: tuple[Value, ...], bound: list[Any]) -> str:
    """The tests of a value for each type it may have: JSON keeps 1, true and '1' apart and SQLite would not."""
    bound.append(_path(field))
    # Only a list is opened: that takes a table of its values for each item.
    each = f"EXISTS (SELECT 1 FROM json_each(items.metadata, ?) AS each WHERE {_typed(operator, values, bound)})"
    cases = [("array", each)]
    for kind in ("integer", "real", "text"):
        if own := _of_type(kind, values):
            bound.append(_path(field))
            cases.append((kind, _test("json_extract(items.metadata, ?)", operator, own, bound)))
    cases += [(kind, "1") for kind in ("true", "false") if _of_type(kind, values)]
    return " ".join(f"WHEN '{kind}' THEN {test}" for kind, test in cases)


def _of_type(kind: str, values: tuple[Value, ...]) -> list[Value]:
    """Those of `values` that a JSON value of this type is compared with."""
    if kind in ("true", "false"):
        return [value for value in values if isinstance(value, bool) and value is (kind == "true")]
    wanted = str if kind == "text" else (int, float)
    return [value for value in values if isinstance(value, wanted) and not isinstance(value, bool)]


def _built_in(name: str, operator: str, texts: list[str], bound: list[Any]) -> str:
    if name == "label":
        return f"(items.key IN (SELECT item FROM labels WHERE {_test('labels.label', operator, texts, bound)}))"
    test = _test(f"items.{name}", operator, texts, bound)
    # Only what may be NULL is wrapped: a wrapped column is not looked up in its index.
    return f"ifnull({test}, 0)" if name in ("caption", "path") else f"({test})"


def _typed(operator: str, values: tuple[Value, ...], bound: list[Any]) -> str:
    """A test of a row of `json_each`."""
    tests = [f"each.type = '{kind}'" for kind in ("true", "false") if _of_type(kind, values)]
    if numbers := _of_type("real", values):
        tests.append(f"each.type IN ('integer', 'real') AND {_test('each.value', operator, numbers, bound)}")
    if texts := _of_type("text", values):
        tests.append(f"each.type = 'text' AND {_test('each.value', operator, texts, bound)}")
    return "(" + " OR ".join(tests) + ")"


def _test(column: str, operator: str, values: list[Any], bound: list[Any]) -> str:
    if operator == "=" and len(values) > 1:
        bound.append(json.dumps(values, ensure_ascii=False))  # one parameter, however long the list
        return f"{column} IN (SELECT value FROM json_each(?))"
    mark = _bind(values[0], bound)
    return f"{column} LIKE {mark} ESCAPE '\\'" if operator == "like" else f"{column} {_sign(operator)} {mark}"


def _bind(value: Any, bound: list[Any]) -> str:
    if not isinstance(value, float):
        bound.append(value)
        return "?"
    # As the metadata does, a fraction goes through SQLite's own reading of digits: both ends round alike.
    bound.append(json.dumps(value))
    return "json_extract(?, '$')"


def _sign(operator: str) -> str:
    """The operator, from a fixed list: a tree built by hand cannot bring SQL along either."""
    return {"=": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}[operator]


def _contains(field: Field, value: Value, bound: list[Any]) -> str:
    if field.built_in and field.keys == ("label",):
        return _any(field, "=", (value,), bound)
    if field.built_in:
        bound += [value] if isinstance(value, str) else []
        return f"ifnull(instr(items.{field.keys[0]}, ?) > 0, 0)" if isinstance(value, str) else "0"
    inside = "0"
    bound.append(_path(field))
    if isinstance(value, str):
        bound += [_path(field), value]
        inside = "instr(json_extract(items.metadata, ?), ?) > 0"
    held = _any(field, "=", (value,), bound)
    return f"(CASE json_type(items.metadata, ?) WHEN 'text' THEN {inside} WHEN 'array' THEN {held} ELSE 0 END)"


def _path(field: Field) -> str:
    """A JSON path. Keys hold no double quotes and no backslashes: neither filters nor metadata accept them."""
    return "$" + "".join(f'."{key}"' for key in field.keys)
