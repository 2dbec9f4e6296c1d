"""An extension of griffe: the lists that docstrings draw with spaces and colons become lists of the page.

Two spaces or more part a name from what it means, as in a table; so does a colon after the name of a parameter or an
attribute, wherever a sentence begins.
"""

import re
from collections.abc import Iterable
from typing import Any

import griffe

COLUMNS = re.compile(r"^\s*(?P<name>\S(?:[^`]{0,24}?\S)?)\s{2,}(?P<text>\S.*)$")
CODE = re.compile(r"(`[^`]*`)")


def as_markdown(docstring: str, names: Iterable[str] = ()) -> str:
    """names: what may stand before a colon."""
    known = "|".join(map(re.escape, names))
    named = re.compile(rf"(?:^|(?<=[.;:] ))((?:{known})(?:, (?:{known}))*): ") if known else None
    return "\n\n".join(paragraph(each, named) for each in docstring.split("\n\n"))


def paragraph(text: str, named: re.Pattern[str] | None) -> str:
    lines = text.splitlines()
    if all(line.startswith("    ") for line in lines):
        return text  # an example
    if any(map(COLUMNS.match, lines)):
        return columns(lines)
    joined = " ".join(line.strip() for line in lines)
    before, *pairs = named.split(joined) if named else [joined]
    entries = [entry(name, meaning) for name, meaning in zip(pairs[::2], pairs[1::2], strict=True)]
    return "\n\n".join(filter(None, [escaped(before).strip(), "\n".join(entries)]))


def columns(lines: list[str]) -> str:
    before: list[str] = []
    entries: list[list[str]] = []
    for line in lines:
        found = COLUMNS.match(line)
        if found:
            entries.append([found["name"], found["text"]])
        else:
            (entries[-1] if entries else before).append(line.strip())
    listed = "\n".join(entry(name, " ".join(meaning)) for name, *meaning in entries)
    return "\n\n".join(filter(None, [escaped(" ".join(before)), listed]))


def entry(name: str, meaning: str) -> str:
    return f"- **{escaped(name)}**: {escaped(meaning.strip())}"


def escaped(text: str) -> str:
    """Without anything that Markdown would take for a tag; what stands between backticks is left alone."""
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in CODE.split(text))


class Lists(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is None:
            return
        names = set(obj.members) if obj.is_class else set()
        taker = obj.members.get("__init__") if obj.is_class else obj
        if isinstance(taker, griffe.Function):
            names |= {parameter.name.lstrip("*") for parameter in taker.parameters}
        obj.docstring.value = as_markdown(obj.docstring.value, sorted(names, key=len, reverse=True))
