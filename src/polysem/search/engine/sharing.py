from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from polysem import threads

_CPU = torch.device("cpu")


def share(run: Callable[[int, int], None], count: int, *, most: int | None = None, multiple: int = 1) -> None:
    """Call run(first, last) for parts of `count`, each on a thread: at most `most`, all but the last a `multiple`.

    run must release the interpreter for most of its time, or nothing is won.
    """
    parts = threads.count(_CPU) if most is None else min(most, threads.count(_CPU))
    if parts <= 1:
        run(0, count)
        return
    step = max(1, -(-count // (parts * multiple))) * multiple
    threads.run([partial(run, first, min(first + step, count)) for first in range(0, count, step)], _CPU)
