"""Captions as people and scripts leave them behind."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from polysem.data.reader_errors import DataError, Problems


def clean_captions(
    captions: Iterable[object], where: str, problems: Problems, repair_bytes: bool = False
) -> tuple[str, ...]:
    """Stripped captions; empty ones are skipped, text that is really a printed bytes object is an error."""
    return tuple(caption for _, caption in _cleaned(captions, where, problems, repair_bytes))


def clean_named_captions(
    captions: Sequence[object], ids: Sequence[object], where: str, problems: Problems, repair_bytes: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The same, and the ids of those that are left. Without an id for each caption there are none."""
    cleaned = list(_cleaned(captions, where, problems, repair_bytes))
    named = len(ids) == len(captions) and None not in ids
    return tuple(caption for _, caption in cleaned), tuple(str(ids[place]) for place, _ in cleaned if named)


def _cleaned(
    captions: Iterable[object], where: str, problems: Problems, repair_bytes: bool
) -> Iterator[tuple[int, str]]:
    """Each caption that is left, with its number."""
    for number, caption in enumerate(captions):
        if not isinstance(caption, str):
            problems.error("caption type", where, f"caption {number} is {type(caption).__name__}, expected text.")
            continue
        caption = " ".join(caption.split())
        if caption.startswith(("b'", 'b"')):
            if not repair_bytes:
                problems.error(
                    "bytes caption",
                    where,
                    f"caption {number} begins with b' ({caption[:40]!r}): Python printed bytes instead of text. "
                    "Every such caption starts with the same odd word, which quietly costs about half the recall. "
                    "Write the file again as text, or read it with repair_bytes=True.",
                )
            else:
                caption = _decoded(caption, where, problems)
        if not caption:
            problems.skip("empty caption", where, f"caption {number} is empty.")
            continue
        yield number, caption


def _decoded(caption: str, where: str, problems: Problems) -> str:
    try:
        value = ast.literal_eval(caption)
        return " ".join((value.decode("utf-8") if isinstance(value, bytes) else caption).split())
    except (ValueError, SyntaxError):
        problems.error("bytes caption", where, f"cannot be repaired: {caption[:40]!r}.")
        return caption


def listed_labels(value: object, where: object, problems: Problems) -> tuple[str, ...]:
    """Of a JSON value: null is none, a text is one, a list has texts or whole numbers."""
    entries = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(entries, list):
        problems.error("label type", where, f"labels are {_shown(value)}; expected a list of names.")
        return ()
    names = []
    for entry in entries:
        if not isinstance(entry, (str, int)) or isinstance(entry, bool):
            problems.error("label type", where, f"a label is {_shown(entry)}; expected a name in quotes.")
            continue
        names.append(str(entry).strip())
    return tuple(dict.fromkeys(name for name in names if name))


def separated_labels(text: str) -> tuple[str, ...]:
    """Names separated by semicolons or bars; by commas where there is neither, since names may hold commas."""
    separator = "[;|]" if ";" in text or "|" in text else ","
    return tuple(dict.fromkeys(name.strip() for name in re.split(separator, text) if name.strip()))


def _shown(value: object) -> str:
    return f"{json.dumps(value)[:40]} ({type(value).__name__})"


def read_json(path: Path) -> Any:
    """The parsed file, or an error that says where it breaks."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}).") from None
    if not text.strip():
        raise DataError(f"{path}: the file is empty.")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not valid JSON, line {error.lineno}: {error.msg}.") from None


def split_name(name: object) -> str | None:
    """One spelling for the splits that data sets name differently."""
    if name is None or name == "":
        return None
    lowered = str(name).strip().lower()
    return {"dev": "val", "valid": "val", "validate": "val", "validation": "val", "testall": "test"}.get(
        lowered, lowered
    )
