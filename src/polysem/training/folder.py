"""The folder of a run: who may write there, what was asked for, and how far it came."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from polysem import atomic_write
from polysem.errors import InputError

RUN, RECIPE = "run.json", "recipe.yaml"


def read(run: Path) -> dict[str, Any] | None:
    """run.json, or None where no run has begun."""
    try:
        found = json.loads((run / RUN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{run / RUN} cannot be read ({error}). Train into another folder.") from None
    return found if isinstance(found, dict) else None


def write(run: Path, content: Mapping[str, Any]) -> None:
    """Replace run.json, and recipe.yaml beside it for people."""
    run.mkdir(parents=True, exist_ok=True)
    recipe = yaml.safe_dump(dict(content["recipe"]), sort_keys=False, allow_unicode=True)
    # run.json first: a folder that has it is known as a run's, whatever else is missing.
    for name, text in ((RUN, json.dumps(content, indent=2, ensure_ascii=False) + "\n"), (RECIPE, recipe)):
        atomic_write.write_text(run / name, text)


def check(run: Path, recipe: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any] | None:
    """What an earlier call with the same command left in this folder; an error if it was another command."""
    if run.exists() and not run.is_dir():
        raise InputError(f"--out {run} is a file. Give a folder.")
    found = read(run)
    if found is None:
        others = sorted(path.name for path in run.iterdir() if not path.name.startswith(".")) if run.is_dir() else []
        if others:
            raise InputError(
                f"--out {run} is not empty and holds no run ({', '.join(others[:3])} …). Give another folder."
            )
        return None
    now, then = json.loads(json.dumps(recipe)), found.get("recipe", {})
    different = [f"{key}: {old!r} then, {new!r} now" for key, old, new in differences(then, now)]
    if found.get("data", {}).get("digest") != data["digest"]:
        different.append("the data: other items, captions or splits")
    if different:
        raise InputError(
            f"{run} holds a run of another command: {'; '.join(different[:5])}. "
            "Run the same command to go on with it, or give another --out."
        )
    return found


def differences(then: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every key that is not the same in both: its path, what it was and what it is."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in sorted({*then, *now}):
            yield from differences(then.get(key), now.get(key), f"{path}.{key}" if path else key)
    elif then != now:
        yield path, then, now


@contextmanager
def held(run: Path) -> Iterator[None]:
    """Keep a second run out of the folder. The lock goes with the process, also when that is killed."""
    run.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    handle = os.open(run / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"Another process is training into {run}. Wait for it, or give another --out.") from None
        yield
    finally:
        os.close(handle)
