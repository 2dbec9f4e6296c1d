"""A thread pool for independent blocks of tensor work, each block on one core.

torch splits every single operation over its threads and waits for all of them at its end. For a long row of small
operations that is a barrier every fraction of a millisecond: on a busy machine it costs ten times the work. Here the
threads meet once, at the end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import torch

_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def run(tasks: Sequence[Callable[[], None]], device: torch.device) -> None:
    """Carry out every task, in any order, without gradients; an exception of any is raised when all have ended."""
    pool = shared_pool(device) if len(tasks) > 1 else None
    if pool is None:
        for task in tasks:
            task()
        return
    inference = torch.is_inference_mode_enabled()

    def run_task(task: Callable[[], None]) -> None:
        # Gradient and inference mode belong to a thread: a worker has to be told the caller's.
        with torch.inference_mode(inference), torch.no_grad():
            task()

    futures = [pool.submit(run_task, task) for task in tasks]
    wait(futures)
    for future in futures:
        future.result()


def count(device: torch.device) -> int:
    """How many blocks may be under way at once: torch's threads, 1 inside a worker."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def single_threaded_pool(workers: int) -> ThreadPoolExecutor:
    """Threads each of which runs torch on itself alone. The caller and threads born later keep the number they had."""
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="polysem")
    barrier = threading.Barrier(workers)

    def begin() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # a thread takes the number over at its first question, not when it is set
        barrier.wait()  # so that no thread begins twice

    wait([pool.submit(begin) for _ in range(workers)])
    torch.set_num_threads(threads)  # set_num_threads(1) also holds for every thread born until the next call
    return pool


def shared_pool(device: torch.device) -> ThreadPoolExecutor | None:
    """One pool for all blocks, since starting threads costs more than many a block; None where a block runs alone."""
    workers = count(device)
    if workers <= 1:
        return None
    with _lock:
        if workers not in _pools:
            _pools[workers] = single_threaded_pool(workers)
        return _pools[workers]


def _reset() -> None:
    """A forked child inherits the pools but not their threads."""
    global _lock
    _pools.clear()
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)
