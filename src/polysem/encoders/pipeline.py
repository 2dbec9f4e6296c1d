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
from functools import partial
from typing import Any, TypeVar

from polysem.errors import InputError

T = TypeVar("T")
R = TypeVar("R")


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
) -> Iterator[tuple[list[int], R | InputError]]:
    """Load and encode the items of every window.

    Args:
        windows: the rows of the items; those of a window are loaded and grouped together.
        load: reads one item; an `InputError` leaves it out.
        encode: takes the rows and the loaded items of one batch, at most `batch`.
        group: what loaded items must have in common to be encoded together, such as their shape.
        readers: threads that load, one window ahead; None loads in the caller's own thread.
        encoders: threads that encode; None encodes in the caller's own thread.
        ahead: items that may be encoded, or wait for it, while the next window is loaded.
        name: names an item in the note of an unexpected error.

    Returns:
        The rows of each batch and what `encode` made of it; the row of an item that could not be loaded, and why.
    """
    in_flight = deque[tuple[list[int], InputError | Callable[[], R]]]()

    def finish(most: int) -> Iterator[tuple[list[int], R | InputError]]:
        while sum(len(rows) for rows, _ in in_flight) > most:
            rows, result = in_flight.popleft()
            yield rows, result if isinstance(result, InputError) else result()

    for window in _load_windows(windows, load, readers, name):
        in_flight.extend(([row], item) for row, item in window if isinstance(item, InputError))
        in_flight.extend(
            (rows, _submit(encoders, _encode, encode, rows, items, name))
            for rows, items in _make_batches(window, batch, group)
        )
        del window  # the queue alone holds the inputs, until they are encoded
        yield from finish(ahead)
    yield from finish(0)


def _load_windows(
    windows: Iterable[Sequence[int]], load: Callable[[int], T], readers: Executor | None, name: Callable[[int], object]
) -> Iterator[list[tuple[int, T | InputError]]]:
    """The items of each window, or why they could not be loaded; meanwhile the readers load the next window."""
    waiting = deque[list[tuple[int, Callable[[], T | InputError]]]]()
    for window in windows:
        if len(window):
            waiting.append([(row, _submit(readers, _load, load, row, name)) for row in window])
        if len(waiting) > 1:
            yield [(row, result()) for row, result in waiting.popleft()]
    while waiting:
        yield [(row, result()) for row, result in waiting.popleft()]


def _load(load: Callable[[int], T], row: int, name: Callable[[int], object]) -> T | InputError:
    try:
        return load(row)
    except InputError as error:
        return error
    except Exception as error:
        error.add_note(f"This happened while loading item {name(row)!r}.")
        raise


def _make_batches(
    window: list[tuple[int, T | InputError]], size: int, group: Callable[[T], Hashable]
) -> list[tuple[list[int], list[T]]]:
    groups: dict[Hashable, list[tuple[int, int, T]]] = {}
    for place, (row, item) in enumerate(window):
        if not isinstance(item, InputError):
            groups.setdefault(group(item), []).append((place, row, item))
    batches = [alike[at : at + size] for alike in groups.values() for at in range(0, len(alike), size)]
    batches.sort(key=lambda batch: batch[0][0])
    return [([row for _, row, _ in batch], [item for _, _, item in batch]) for batch in batches]


def _encode(
    encode: Callable[[list[int], list[T]], R], rows: list[int], items: list[T], name: Callable[[int], object]
) -> R:
    try:
        return encode(rows, items)
    except Exception as error:
        error.add_note(f"This happened while encoding items {[name(row) for row in rows]}.")
        raise


def _submit(executor: Executor | None, function: Callable[..., R], *arguments: Any) -> Callable[[], R]:
    """A call whose result is asked for later: begun now by the executor, or made then by the caller."""
    return partial(function, *arguments) if executor is None else executor.submit(function, *arguments).result
