"""The syntax tree of filters, which SQL, Python and Milvus each translate, and its recursive-descent parser.

or      := and ("or" and)*
and     := not ("and" not)*
not     := "not" not | "(" or ")" | test
test    := name operator value | name ["not"] ("in" "(" value ("," value)* ")" | "like" text | "contains" value)
         | name "is" ["not"] "null"
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, TypeVar, cast

from polysem._deprecated import renamed_attribute
from polysem.errors import InputError

MAX_LENGTH = 100_000
# SQLite limits the depth of an expression and of its own parser's stack (100): these keep every filter within.
MAX_DEPTH = 10
MAX_TESTS = 500
MAX_PATTERN = 1000
_WORDS = ("and", "or", "not", "in", "like", "contains", "is", "null", "true", "false")
_TOKENS = re.compile(
    r"""(?P<space>\s+)
      | (?P<number>[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?(?![\w.]))
      | (?P<text>'(?:[^']|'')*')
      | (?P<quoted>"[^"]*")
      | (?P<name>[^\W\d]\w*)
      | (?P<sign><=|>=|!=|<>|==|[=<>(),.])""",
    re.VERBOSE,
)
_UNSTORABLE = re.compile(r"[\0\ud800-\udfff]")
_SAME = {"==": "=", "<>": "!="}
_VALUE = "a value ('text', a number, true or false)"
T = TypeVar("T")
Value: TypeAlias = str | int | float | bool
Operator = Literal["=", "<", "<=", ">", ">=", "like", "contains"]
BUILT_IN = ("id", "label", "caption", "path", "side")


@dataclass(frozen=True)
class Field:
    """A name, as the keys that lead to it. `built_in` or else a path into the metadata."""

    keys: tuple[str, ...]
    built_in: bool = False

    @classmethod
    def from_keys(cls, keys: tuple[str, ...]) -> Field:
        """The field that these keys mean in a filter."""
        if len(keys) == 1 and keys[0] in BUILT_IN:
            return cls(keys, built_in=True)
        return cls(keys[1:] if keys[0] == "metadata" and len(keys) > 1 else keys)

    named = renamed_attribute("named", "from_keys")


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


class FilterError(InputError):
    """A filter that cannot be parsed. The message shows where."""


class _Token(NamedTuple):
    kind: str
    text: str
    place: int


def parse(text: str) -> Filter:
    """The tree of a filter."""
    if not isinstance(text, str):
        raise FilterError(f"A filter is a text such as \"label = 'dog'\", got {type(text).__name__}.")
    if len(text) > MAX_LENGTH:
        raise FilterError(f"The filter has {len(text):,} characters, the limit is {MAX_LENGTH:,}. Split it.")
    if bad := _UNSTORABLE.search(text):
        raise _error(text, bad.start(), f"found {bad[0]!r}, which no item can hold")
    parser = _Parser(text)
    if parser.token.kind == "end":
        raise parser.expected_error("a comparison such as label = 'dog'")
    tree = parser.parse_or()
    if parser.token.kind != "end":
        raise parser.expected_error("'and', 'or' or the end")
    return tree


def _tokens(text: str) -> list[_Token]:
    found, place = [], 0
    while place < len(text):
        match = _TOKENS.match(text, place)
        if match is None:
            raise _error(text, place, _describe_unknown(text[place]))
        kind, token = str(match.lastgroup), match[0]
        if kind == "name" and token.lower() in _WORDS:
            kind, token = "word", token.lower()
        if kind != "space":
            found.append(_Token(kind, token, place))
        place = match.end()
    return [*found, _Token("end", "", len(text))]


def _describe_unknown(sign: str) -> str:
    if sign in "'\"":
        return f"this {sign} is not closed"
    if sign in "+-.0123456789":
        return "expected a number such as 12, -0.5 or 1e3"
    return f"found {sign!r}, which no filter needs outside quotation marks"


def _error(text: str, place: int, why: str) -> FilterError:
    # One line around the place, whatever the filter holds.
    start, stop = max(0, place - 60), place + 40
    line = "".join(sign if sign.isprintable() else " " for sign in text[start:stop])
    return FilterError(f"Cannot read the filter at character {place + 1}: {why}.\n  {line}\n  {' ' * (place - start)}^")


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.tokens, self.next = text, _tokens(text), 0
        self.depth = self.tests = 0

    @property
    def token(self) -> _Token:
        return self.tokens[self.next]

    def expected_error(self, what: str, advice: str = "") -> FilterError:
        found = "the end" if self.token.kind == "end" else f"{self.token.text!r}"
        return _error(self.text, self.token.place, f"expected {what}, found {found}{advice}")

    def accept(self, *texts: str) -> str | None:
        """Step over the next token if it is one of these words or signs."""
        if self.token.kind in ("word", "sign") and self.token.text in texts:
            self.next += 1
            return self.tokens[self.next - 1].text
        return None

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.expected_error(f"{text!r}")

    def parse_separated(self, separator: str, read: Callable[[], T]) -> tuple[T, ...]:
        parts = [read()]
        while self.accept(separator):
            parts.append(read())
        return tuple(parts)

    def parse_or(self) -> Filter:
        parts = self.parse_separated("or", self.parse_and)
        return parts[0] if len(parts) == 1 else Or(parts)

    def parse_and(self) -> Filter:
        parts = self.parse_separated("and", self.parse_not)
        return parts[0] if len(parts) == 1 else And(parts)

    def parse_not(self) -> Filter:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _error(self.text, self.token.place, f"it is nested more than {MAX_DEPTH} deep")
        if self.accept("not"):
            found: Filter = Not(self.parse_not())
        elif self.accept("("):
            found = self.parse_or()
            self.expect(")")
        else:
            found = self.parse_test()
        self.depth -= 1
        return found

    def parse_test(self) -> Filter:
        self.tests += 1
        if self.tests > MAX_TESTS:
            raise _error(self.text, self.token.place, f"more than {MAX_TESTS} comparisons; use in ('a', 'b', …)")
        field = self.parse_field()
        if self.accept("is"):
            negated = self.accept("not") is not None
            self.expect("null")
            return Not(IsNull(field)) if negated else IsNull(field)
        if self.accept("not"):
            return Not(self.parse_words(field, "'in', 'like' or 'contains'"))
        if sign := self.accept("=", "==", "!=", "<>", "<", "<=", ">", ">="):
            sign = _SAME.get(sign, sign)
            value = self.parse_value(f"{_VALUE} after '{sign}'")
            if sign == "!=":
                return Not(Compare(field, "=", value))
            if isinstance(value, bool) and sign != "=":
                self.next -= 1
                raise self.expected_error("a number or 'text': true and false have no order")
            return Compare(field, cast(Operator, sign), value)
        return self.parse_words(field, "a comparison (=, !=, <, <=, >, >=, in, like, contains, is null)")

    def parse_words(self, field: Field, expected: str) -> Filter:
        if self.accept("in"):
            self.expect("(")
            values = self.parse_separated(",", lambda: self.parse_value(_VALUE))
            self.expect(")")
            return In(field, values)
        if self.accept("like"):
            return Compare(field, "like", self.parse_pattern())
        if self.accept("contains"):
            return Compare(field, "contains", self.parse_value(f"{_VALUE} after 'contains'"))
        raise self.expected_error(expected)

    def parse_pattern(self) -> str:
        if self.token.kind != "text":
            raise self.expected_error("a 'text' after 'like'")
        token, pattern = self.token, str(self.parse_value(_VALUE))
        if len(pattern) > MAX_PATTERN:
            raise _error(self.text, token.place, f"this pattern has more than {MAX_PATTERN} characters")
        if re.fullmatch(r"(?:[^\\]|\\.)*", pattern, re.DOTALL) is None:
            raise _error(self.text, token.place, "the \\ at its end stands before nothing")
        return pattern

    def parse_field(self) -> Field:
        keys = [self.parse_key("a name such as label or year")]
        while self.accept("."):
            keys.append(self.parse_key("a name after '.'"))
        return Field.from_keys(tuple(keys))

    def parse_key(self, expected: str) -> str:
        token = self.token
        if token.kind not in ("name", "quoted"):
            raise self.expected_error(expected)
        key = token.text[1:-1] if token.kind == "quoted" else token.text
        if not key or any(sign == "\\" or sign < " " for sign in key):
            raise self.expected_error("a name without backslashes and control characters")
        self.next += 1
        return key

    def parse_value(self, expected: str) -> Value:
        token = self.token
        if token.kind == "word" and token.text == "null":
            raise self.expected_error(expected, ": write `is null`")
        if token.kind == "quoted":
            raise self.expected_error(expected, ": texts stand in single quotes")
        if word := self.accept("true", "false"):
            return word == "true"
        if token.kind not in ("text", "number"):
            raise self.expected_error(expected)
        self.next += 1
        if token.kind == "text":
            return token.text[1:-1].replace("''", "'")
        if re.fullmatch(r"[+-]?[0-9]+", token.text):
            whole = int(token.text) if len(token.text) < 21 else 2**63
            if -(2**63) <= whole < 2**63:
                return whole
        elif math.isfinite(number := float(token.text)):
            return number
        raise _error(self.text, token.place, "this number is too large")
