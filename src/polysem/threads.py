"""Independent blocks of work on all cores, each block on one thread.

torch splits every single operation over its threads and waits for all of them at its end. For a long row of small
operations that is a barrier every fraction of a millisecond: on a busy machine it costs ten times the work. Here the
threads meet once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch


def run(tasks: Sequence[Callable[[], None]], device: torch.device) -> None:
    """Carry out every task, in any order, without gradients; an exception of any is raised."""
    workers = min(count(device), len(tasks))
    if workers <= 1:
        for task in tasks:
            task()
        return
    threads, inference = torch.get_num_threads(), torch.is_inference_mode_enabled()

    def isolated(task: Callable[[], None]) -> None:
        # Gradient and inference mode belong to a thread: a worker has to be told the caller's.
        with torch.inference_mode(inference), torch.no_grad():
            task()

    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(isolated, tasks):
                pass
    finally:
        # set_num_threads(1) holds for the worker's own thread and for threads yet to be born; undo the latter.
        torch.set_num_threads(threads)


def count(device: torch.device) -> int:
    """How many blocks may be under way at once."""
    return torch.get_num_threads() if device.type == "cpu" else 1
