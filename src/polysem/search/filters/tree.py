"""The tree a filter is parsed into: what SQL, Python and a vector database each translate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Value: TypeAlias = str | int | float | bool
Operator = Literal["=", "<", "<=", ">", ">=", "like", "contains"]
BUILT_IN = ("id", "label", "caption", "path", "side")


@dataclass(frozen=True)
class Field:
    """A name, as the keys that lead to it. `built_in` or else a path into the metadata."""

    keys: tuple[str, ...]
    built_in: bool = False

    @classmethod
    def named(cls, keys: tuple[str, ...]) -> Field:
        """The field that these keys mean in a filter."""
        if len(keys) == 1 and keys[0] in BUILT_IN:
            return cls(keys, built_in=True)
        return cls(keys[1:] if keys[0] == "metadata" and len(keys) > 1 else keys)


@dataclass(frozen=True)
class Compare:
    """`field operator value`. There is no `!=`: it is `Not` of `=`."""

    field: Field
    operator: Operator
    value: Value


@dataclass(frozen=True)
class In:
    """`field in (values)`."""

    field: Field
    values: tuple[Value, ...]


@dataclass(frozen=True)
class IsNull:
    """`field is null`: the item does not have it, or has it as null."""

    field: Field


@dataclass(frozen=True)
class Not:
    part: Filter


@dataclass(frozen=True)
class And:
    parts: tuple[Filter, ...]


@dataclass(frozen=True)
class Or:
    parts: tuple[Filter, ...]


Filter: TypeAlias = Compare | In | IsNull | Not | And | Or
