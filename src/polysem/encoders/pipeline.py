"""Items through a network in batches: some threads load, some encode, results come back in order.

What is in a batch depends on the list of items alone. The list is cut into windows, each window is grouped by the shape
of what was loaded, each group is cut into batches, and batches come in the order of their first items. Taking batches
away from the front leaves the others as they are: a run that was interrupted and resumed forms the same batches as one
that was not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from torch import Tensor

from polysem.errors import InputError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Encoded(Generic[R]):
    """A batch that was encoded: its items' rows, and what `encode` made of it."""

    rows: list[int]
    result: R


@dataclass(frozen=True)
class Unreadable:
    """An item that could not be loaded, and why."""

    row: int
    error: InputError


def shape(item: Tensor) -> Hashable:
    """Groups tensors that can be stacked."""
    return tuple(item.shape)


def windows(rows: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """The rows, so many at a time."""
    return (rows[start : start + size] for start in range(0, len(rows), size))


def encode_windows(
    windows: Iterable[Sequence[int]],
    load: Callable[[int], T],
    encode: Callable[[list[int], list[T]], R],
    batch: int,
    *,
    group: Callable[[T], Hashable],
    readers: Executor | None = None,
    encoders: Executor | None = None,
    ahead: int = 0,
    name: Callable[[int], object] = str,
) -> Iterator[Encoded[R] | Unreadable]:
    """Load and encode the items of every window.

    Args:
        windows: the rows of the items; those of a window are loaded and grouped together.
        load: reads one item; an `InputError` leaves it out.
        encode: takes the rows and the loaded items of one batch.
        batch: most items of one batch.
        group: what loaded items must have in common to be encoded together, such as their shape.
        readers: threads that load, one window ahead; None loads in the caller's own thread.
        encoders: threads that encode; None encodes in the caller's own thread.
        ahead: items that may be encoded, or wait for it, while the next window is loaded.
        name: names an item in the note of an unexpected error.
    """
    in_flight = deque[tuple[int, Unreadable | Callable[[], Encoded[R]]]]()

    def finish(most: int) -> Iterator[Encoded[R] | Unreadable]:
        while sum(count for count, _ in in_flight) > most:
            _, result = in_flight.popleft()
            yield result if isinstance(result, Unreadable) else result()

    for loaded, unreadable in _loaded_windows(windows, load, readers, name):
        in_flight.extend((1, item) for item in unreadable)
        in_flight.extend(
            (len(rows), _submit(encoders, _encode, encode, rows, items, name))
            for rows, items in _batches(loaded, batch, group)
        )
        del loaded  # the queue alone holds the inputs, until they are encoded
        yield from finish(ahead)
    yield from finish(0)


def _loaded_windows(
    windows: Iterable[Sequence[int]], load: Callable[[int], T], readers: Executor | None, name: Callable[[int], object]
) -> Iterator[tuple[list[tuple[int, T]], list[Unreadable]]]:
    """What was loaded of each window, and what could not be; meanwhile the readers load the next window."""
    waiting = deque[list[tuple[int, Callable[[], T | Unreadable]]]]()

    def collect() -> tuple[list[tuple[int, T]], list[Unreadable]]:
        results = [(row, result()) for row, result in waiting.popleft()]
        loaded = [(row, item) for row, item in results if not isinstance(item, Unreadable)]
        return loaded, [item for _, item in results if isinstance(item, Unreadable)]

    for window in windows:
        if len(window):
            waiting.append([(row, _submit(readers, _load, load, row, name)) for row in window])
        if len(waiting) > 1:
            yield collect()
    while waiting:
        yield collect()


def _load(load: Callable[[int], T], row: int, name: Callable[[int], object]) -> T | Unreadable:
    try:
        return load(row)
    except InputError as error:
        return Unreadable(row, error)
    except Exception as error:
        error.add_note(f"This happened while loading item {name(row)!r}.")
        raise


def _batches(loaded: list[tuple[int, T]], size: int, group: Callable[[T], Hashable]) -> list[tuple[list[int], list[T]]]:
    groups: dict[Hashable, list[tuple[int, T]]] = {}
    for row, item in loaded:
        groups.setdefault(group(item), []).append((row, item))
    batches = [alike[at : at + size] for alike in groups.values() for at in range(0, len(alike), size)]
    order = {row: place for place, (row, _) in enumerate(loaded)}
    batches.sort(key=lambda batch: order[batch[0][0]])
    return [([row for row, _ in batch], [item for _, item in batch]) for batch in batches]


def _encode(
    encode: Callable[[list[int], list[T]], R], rows: list[int], items: list[T], name: Callable[[int], object]
) -> Encoded[R]:
    try:
        return Encoded(rows, encode(rows, items))
    except Exception as error:
        error.add_note(f"This happened while encoding items {[name(row) for row in rows]}.")
        raise


def _submit(executor: Executor | None, function: Callable[..., R], *arguments: Any) -> Callable[[], R]:
    """A call whose result is asked for later: begun now by the executor, or made then by the caller."""
    return partial(function, *arguments) if executor is None else executor.submit(function, *arguments).result
