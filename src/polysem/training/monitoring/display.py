"""The progress of a run on stderr: a bar and the latest figures in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from polysem.training.monitoring.diagnosis import TrainingFinding
from polysem.training.monitoring.report import format_duration

REFRESH = 4
"""Drawings per second, in a thread of their own: a step only stores its record."""
QUIET_SECONDS = 30.0
"""Between two lines where there is no terminal to draw on, such as a log file."""
_SMOOTH = 0.9


class TerminalDisplay:
    """Shows the records of metrics.jsonl on stderr as they come. A context manager; without `enabled` it is silent."""

    def __init__(self, title: str, total_steps: int, enabled: bool = True, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self.console.quiet |= not enabled
        self.title, self.total = title, total_steps
        self._interactive = enabled and self.console.is_interactive
        self._record: Mapping[str, Any] = {}
        self._validation: Mapping[str, Any] = {}
        self._best: Mapping[str, Any] = {}
        self._speed: float | None = None
        self._start, self._began, self._last_line = 0, time.monotonic(), time.monotonic()
        columns = (BarColumn(bar_width=None), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=self.console, expand=True)
        self._task = self._bar.add_task("", total=total_steps)
        self._live = Live(get_renderable=self._draw, console=self.console, refresh_per_second=REFRESH)

    def __enter__(self) -> TerminalDisplay:
        self._began = time.monotonic()
        if self._interactive:
            self._live.start()
        else:
            self._print_line(f"{self.title}: {self.total - self._start:,} steps to go.")
        return self

    def __exit__(self, *_: object) -> None:
        if self._interactive:
            self._live.stop()
        elif self._record:
            self._print_line(self._summary())

    def resume(self, step: int, best: Mapping[str, Any] | None = None) -> None:
        """Count from this step: what was done before tells nothing about the speed. best: the run's best validation."""
        self._best = best or {}
        self._start, self._began = step, time.monotonic()
        self._bar.reset(self._task, completed=step)
        self._print_line(f"Resumed at step {step:,} of {self.total:,}.")

    def step(self, record: Mapping[str, Any]) -> None:
        self._record = record
        speed = record.get("items_per_second")
        if speed is not None:
            self._speed = speed if self._speed is None else _SMOOTH * self._speed + (1 - _SMOOTH) * speed
        if self._interactive:
            self._bar.update(self._task, completed=record["step"])
        elif time.monotonic() - self._last_line >= QUIET_SECONDS:
            self._print_line(self._summary())

    def validation(self, record: Mapping[str, Any]) -> None:
        self._validation = record
        if record.get("best"):
            self._best = record
        best = ", the best so far" if record.get("best") else ""
        self._print_line(f"Step {record['step']:,}: {_format_recalls(record)}{best}.")

    def finding(self, finding: TrainingFinding) -> None:
        when = f"step {finding.step:,}" if finding.step else "before the first step"
        message = f"{finding.name} ({when}): {finding.says} What to do: {finding.advice}"
        # A terminal wraps at words; a log keeps the message on one line, where a search finds it whole.
        self.console.print(Text(message, style="yellow"), soft_wrap=not self._interactive)

    def _print_line(self, text: str) -> None:
        self._last_line = time.monotonic()
        self.console.print(Text(text), soft_wrap=not self._interactive)

    def _draw(self) -> Group:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column(overflow="fold")
        for name, value in self._facts():
            table.add_row(Text(name), Text(value))
        return Group(Text(self.title), self._bar, table)

    def _summary(self) -> str:
        """The facts on one line."""
        step = int(self._record["step"])
        done = step - self._start
        facts = [f"Step {step:,} of {self.total:,}", *(f"{name} {value}" for name, value in self._facts())]
        if done > 0 and step < self.total:
            facts.append(f"left {format_duration((self.total - step) * (time.monotonic() - self._began) / done)}")
        return "; ".join(facts) + "."

    def _facts(self) -> Iterator[tuple[str, str]]:
        record = self._record
        if record.get("loss") is not None:
            parts = ", ".join(f"{name} {_number(value)}" for name, value in (record.get("parts") or {}).items())
            yield "loss", _number(record["loss"]) + (f" ({parts})" if parts else "")
        if record.get("lr"):
            # Groups that share a learning rate share an entry; one rate for all needs no names.
            groups: dict[float, list[str]] = {}
            for name, rate in record["lr"].items():
                groups.setdefault(rate, []).append(name)
            single = len(groups) == 1
            entries = (_number(rate) + ("" if single else f" ({' '.join(names)})") for rate, names in groups.items())
            yield "lr", ", ".join(entries)
        info = record.get("info") or {}
        if "active" in info:
            yield "active triplets", f"{info['active']:.0%}"
        if "k" in info:
            yield "negatives (K)", f"{info['k']:.0f}"
        if record.get("variance"):
            yield "variance", ", ".join(f"{side} {_number(value)}" for side, value in record["variance"].items())
        if record.get("grad_norm") is not None:
            yield "gradient norm", _number(record["grad_norm"])
        if self._speed is not None:
            yield "items/s", f"{self._speed:,.0f}"
        if self._validation:
            yield "validation", _format_recalls(self._validation)
        if self._best.get("rsum") is not None:
            what = _format_labels(self._best) or f"RSUM {self._best['rsum']:.1f}"
            yield "best", f"{what} at step {self._best['step']:,}"


def _format_recalls(record: Mapping[str, Any]) -> str:
    parts = [f"RSUM {record['rsum']:.1f}"] if record.get("rsum") is not None else []
    for way in ("i2t", "t2i"):
        if record.get(way):
            parts.append(f"{way} {' / '.join(f'{value:.1f}' for value in record[way].values())}")
    return ", ".join(filter(None, [*parts, _format_labels(record)]))


def _format_labels(record: Mapping[str, Any]) -> str:
    """What picks the checkpoint of a run that learns labels, and how it classifies; nothing for other runs."""
    return ", ".join(
        f"{name} {' / '.join(f'{value:.1f}' for value in values.values())}"
        for name, values in (record.get("labels") or {}).items()
        if name != "map"
    )


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
