"""glibc malloc settings for runs over many batches: freed memory stays with the process."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

# Of malloc.h, where they are macros.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8
_KEEP = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**30))
_RESTORE = ((_ARENA_MAX, 0), (_MMAP_MAX, 65536), (_MMAP_THRESHOLD, 2**25), (_TRIM_THRESHOLD, 2**26))


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Within the block glibc reuses what is freed; other C libraries are left as they are.

    Otherwise it returns a thread's pieces of 64 MB to the system as soon as they are empty. The activations of a
    convolutional network fill and empty them in every layer: thousands of page faults for a picture, up to a quarter of
    the time; of a training step, a few percent. Peak memory stays the same.

    This holds for the whole process. Afterwards the thresholds are those that glibc itself moves to in a process that
    frees large blocks, and what was kept is given back; that later threads share one arena may remain.
    """
    try:
        library = ctypes.CDLL(None)
        change, give_back = library.mallopt, library.malloc_trim
    except (AttributeError, OSError, TypeError):  # not glibc
        yield
        return
    for option, value in _KEEP:
        change(option, value)
    try:
        yield
    finally:
        for option, value in _RESTORE:
            change(option, value)
        give_back(ctypes.c_size_t(0))
