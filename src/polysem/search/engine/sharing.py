from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from polysem import cpu_blocks

_CPU = torch.device("cpu")


def share(
    run: Callable[[int, int], None],
    count: int,
    *,
    most: int | None = None,
    multiple: int = 1,
    largest: int | None = None,
) -> None:
    """Call run(first, last) for parts of `count`, on at most `most` threads; all parts but the last are a `multiple`.

    As many parts as threads, or more if none may be larger than `largest`. run must release the interpreter for most of
    its time, or nothing is won.
    """
    workers = max(1, cpu_blocks.count(_CPU) if most is None else min(most, cpu_blocks.count(_CPU)))
    step = max(1, -(-count // (workers * multiple))) * multiple
    step = step if largest is None else min(step, largest)
    parts = [partial(run, first, min(first + step, count)) for first in range(0, count, step)]
    if workers > 1:
        cpu_blocks.run(parts, _CPU)
    else:
        for part in parts:
            part()
