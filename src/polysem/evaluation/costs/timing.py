"""Times that can be compared on a machine with other things to do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Seconds:
    """wall: by the clock. cpu: of all threads of this process together."""

    wall: float
    cpu: float

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall + other.wall, self.cpu + other.cpu)


def medians(
    tasks: Mapping[Key, Callable[[], object]], rounds: int, progress: Progress | None = None
) -> dict[Key, Seconds]:
    """The median time of each task over so many rounds. A first round more warms up and is not counted.

    A round runs every task once: whatever slows the machine for a while slows all of them alike.
    """
    times: dict[Key, list[Seconds]] = {key: [] for key in tasks}
    for number in range(rounds + 1):
        for place, (key, task) in enumerate(tasks.items(), 1):
            taken = _timed(task)
            if number:
                times[key].append(taken)
            if progress is not None:
                progress(number * len(tasks) + place, (rounds + 1) * len(tasks))
    return {
        key: Seconds(statistics.median(t.wall for t in taken), statistics.median(t.cpu for t in taken))
        for key, taken in times.items()
    }


def _timed(task: Callable[[], object]) -> Seconds:
    wall, cpu = time.perf_counter(), time.process_time()
    task()
    return Seconds(time.perf_counter() - wall, time.process_time() - cpu)
