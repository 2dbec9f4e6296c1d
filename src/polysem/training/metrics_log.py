"""The run's diary: metrics.jsonl, one line per event, cut back to the checkpoint when a run goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from polysem import atomic_write

METRICS = "metrics.jsonl"


class Records:
    """Appends events. Without `enabled` (a process that is not the first) it does nothing."""

    def __init__(self, run: Path, enabled: bool = True) -> None:
        self.path, self.enabled = run / METRICS, enabled
        self._file: IO[str] | None = None

    def resume(self, step: int) -> None:
        """Forget what was written after `step`: it will come again."""
        if not self.enabled:
            return
        kept = [line for line in read(self.path) if line.get("step", 0) <= step]
        atomic_write.write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def write(self, record: Mapping[str, Any]) -> None:
        if not self.enabled:
            return
        if self._file is None:
            self._file = self.path.open("a", encoding="utf-8")
        self._file.write(json.dumps(finite(record)) + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read(path: Path) -> list[dict[str, Any]]:
    """Every whole line; one that was cut by a kill is left out."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            found.append(entry)
    return found


def finite(value: Any) -> Any:
    """JSON knows no NaN: such a number becomes null."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
