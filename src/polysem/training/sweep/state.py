"""sweep.json: what a sweep's folder is about, and what has been found so far. One begun earlier is gone on with."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polysem.errors import InputError
from polysem.training.folder import differences
from polysem.training.metrics_log import finite
from polysem.training.sweep.plan import Plan

STATE, PICTURE = "sweep.json", "sweep.png"


def read(out: Path) -> dict[str, Any] | None:
    """None where no sweep has begun."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file. Give a folder.")
    try:
        found = json.loads((out / STATE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        others = sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) if out.is_dir() else []
        if others:
            raise InputError(
                f"--out {out} is not empty and holds no sweep ({', '.join(others[:3])} …). Give another folder."
            ) from None
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{out / STATE} cannot be read ({error}). Sweep into another folder.") from None
    if not isinstance(found, dict) or not {"keys", "settings", "content", "runs"} <= found.keys():
        raise InputError(f"{out / STATE} was not written by a sweep. Sweep into another folder.")
    return found


def check(out: Path, earlier: Mapping[str, Any], plan: Plan, content: Mapping[str, str]) -> None:
    """Raise if the folder's sweep is another one: its runs and the new ones would stand in one table. More values and
    more seeds are welcome."""
    different = []
    if sorted(earlier["keys"]) != sorted(plan.keys):
        different.append(f"keys swept: {', '.join(earlier['keys'])} then, {', '.join(plan.keys)} now")
    else:
        now = json.loads(json.dumps(plan.base, default=str))
        different += [f"{key}: {old!r} then, {new!r} now" for key, old, new in differences(earlier["settings"], now)]
    swept_data = any(key.partition(".")[0] == "data" for key in plan.keys)
    if earlier["content"] != content and not swept_data:  # else each run sees to it
        different.append("the data: other items, captions, labels or splits")
    if different:
        raise InputError(
            f"{out} holds another sweep: {'; '.join(different[:5])}. Run the same command to go on with it or to add "
            "values and seeds, or give another --out."
        )


def write(out: Path, content: Mapping[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    partial = out / f".{STATE}.partial"
    text = json.dumps(finite(content), indent=2, ensure_ascii=False, default=str)
    partial.write_text(text + "\n", encoding="utf-8")
    os.replace(partial, out / STATE)
