"""Files to features, with every core busy: some threads read and prepare, some encode, one writes.

An encoding thread runs torch on itself alone: torch's own threads meet at the end of every single operation, which on
a busy machine costs more than it brings (see `polysem.cpu_blocks`).

The plan is a function of the list of keys alone. Keys are cut into windows, each window is grouped by the shape of what
was prepared, each group is cut into batches, and batches are written in the order of their first keys. Taking batches
away from the front leaves the others as they are: a run that was interrupted and goes on forms the same batches, and
writes the same bytes, as one that was not.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from polysem.cpu_blocks import single_threaded_pool
from polysem.data.collection import Skipped
from polysem.data.store import StoreEntry, StoreWriter
from polysem.errors import InputError
from polysem.features import LocalFeatures

COMMIT_SECONDS = 1.0
"""How much work a sudden end may cost."""


@dataclass(frozen=True)
class Progress:
    """How far a rank is: `done` of its `total` items are encoded or skipped, `resumed` of them by an earlier run."""

    total: int
    resumed: int
    done: int
    skipped: int


@dataclass(frozen=True)
class Job:
    """What to extract: the i-th key's input is `prepare(i)`; inputs of one shape, stacked, are encoded together.

    `prepare` raises `InputError` for an input that has to be skipped.
    """

    keys: Sequence[str]
    prepare: Callable[[int], Tensor]
    encode: Callable[[Tensor], LocalFeatures]


@dataclass(frozen=True)
class Pace:
    """batch: most inputs encoded together. window: inputs that are grouped by shape, and bound of what is in memory.

    readers, encoders: number of threads. alone: torch runs each thread's operations on that thread.
    """

    batch: int
    window: int
    readers: int
    encoders: int
    alone: bool


def run(
    job: Job, writer: StoreWriter, pace: Pace, done: set[str], report: Callable[[Progress], None] = lambda _: None
) -> None:
    """Extract every key of the job that is not `done`, and commit at least every second or so."""
    todo = sum(key not in done for key in job.keys)
    total, resumed, skipped = len(job.keys), len(job.keys) - todo, 0
    encoded, in_flight = 0, deque[tuple[int, Future[list[StoreEntry]] | list[Skipped]]]()
    committed = time.monotonic()
    report(Progress(total, resumed, resumed, 0))

    def write(given: Future[list[StoreEntry]] | list[Skipped]) -> None:
        nonlocal encoded, skipped, committed
        if isinstance(given, Future):
            entries = given.result()
            writer.add(entries)
            encoded += len(entries)
        else:
            writer.add([], given)
            skipped += len(given)
        if time.monotonic() - committed > COMMIT_SECONDS:
            writer.commit()
            committed = time.monotonic()
        report(Progress(total, resumed, resumed + encoded + skipped, skipped))

    def finish_until(most: int) -> None:
        while sum(count for count, _ in in_flight) > most:
            write(in_flight.popleft()[1])

    with _pool(pace.readers, pace.alone) as readers, _pool(pace.encoders, pace.alone) as encoders:
        for ready, left_out in _windows(job, done, readers, pace.window):
            if left_out:
                in_flight.append((len(left_out), left_out))
            in_flight.extend(
                (len(places), encoders.submit(_encode, job, places, inputs))
                for places, inputs in _batches(ready, pace.batch)
            )
            del ready  # the queue alone holds the inputs, until they are encoded
            finish_until(pace.window)
        finish_until(0)
    writer.commit()


def _windows(
    job: Job, done: set[str], readers: Executor, size: int
) -> Iterator[tuple[list[tuple[int, Tensor]], list[Skipped]]]:
    """What was prepared of each window, and what could not be; meanwhile the next window is being read."""
    # Cut by place in the whole list: where a run goes on, the rest of a window is grouped as it would have been.
    starts = range(0, len(job.keys), size)
    windows = ([i for i in range(at, min(at + size, len(job.keys))) if job.keys[i] not in done] for at in starts)
    ahead = deque[list[tuple[int, Future[Tensor | Skipped]]]]()

    def collect() -> tuple[list[tuple[int, Tensor]], list[Skipped]]:
        found = [(place, future.result()) for place, future in ahead.popleft()]
        ready = [(place, given) for place, given in found if isinstance(given, Tensor)]
        return ready, [given for _, given in found if isinstance(given, Skipped)]

    for window in windows:
        if window:
            ahead.append([(place, readers.submit(_prepare, job, place)) for place in window])
        if len(ahead) > 1:
            yield collect()
    while ahead:
        yield collect()


def _prepare(job: Job, place: int) -> Tensor | Skipped:
    try:
        return job.prepare(place)
    except InputError as error:
        return Skipped(job.keys[place], str(error))
    except Exception as error:
        error.add_note(f"This happened while preparing item {job.keys[place]!r}.")
        raise


def _batches(ready: list[tuple[int, Tensor]], size: int) -> list[tuple[list[int], list[Tensor]]]:
    groups: dict[tuple[int, ...], list[tuple[int, Tensor]]] = {}
    for place, given in ready:
        groups.setdefault(tuple(given.shape), []).append((place, given))
    cut = [group[at : at + size] for group in groups.values() for at in range(0, len(group), size)]
    cut.sort(key=lambda batch: batch[0][0])
    return [([place for place, _ in batch], [given for _, given in batch]) for batch in cut]


def _encode(job: Job, places: list[int], inputs: list[Tensor]) -> list[StoreEntry]:
    try:
        with torch.inference_mode():
            features = job.encode(torch.stack(inputs))
            values, mask = features.values.float().cpu().numpy(), features.mask.cpu().numpy()
            summary = None if features.summary is None else features.summary.float().cpu().numpy()
    except Exception as error:
        error.add_note(f"This happened while encoding items {[job.keys[place] for place in places]}.")
        raise
    return [
        StoreEntry(
            job.keys[place],
            values[row] if mask[row].all() else values[row][mask[row]],
            None if summary is None else summary[row],
        )
        for row, place in enumerate(places)
    ]


@contextmanager
def _pool(workers: int, alone: bool) -> Iterator[ThreadPoolExecutor]:
    pool = single_threaded_pool(workers) if alone else ThreadPoolExecutor(workers)
    try:
        yield pool
    finally:
        # After an error or Ctrl-C nobody wants what is still queued.
        pool.shutdown(cancel_futures=True)
