"""Threads for what takes time, and no more waiting for them than they can do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from polysem.server.errors import overloaded

T = TypeVar("T")


class Workers:
    """`await workers.run(function, …)` on a thread. Beyond `most` waiting or running, it is refused at once.

    A request may give up; its thread cannot, so its place is free only when the thread is.
    """

    def __init__(self, pool: ThreadPoolExecutor, most: int) -> None:
        self._pool, self._most = pool, most
        self.busy = self.refused = 0

    async def run(self, work: Callable[..., T], *given: Any, **named: Any) -> T:
        if self.busy >= self._most:
            self.refused += 1
            raise overloaded()
        loop = asyncio.get_running_loop()
        self.busy += 1
        future: Future[T] = self._pool.submit(work, *given, **named)
        future.add_done_callback(lambda _: _tell(loop, self._done))
        return await asyncio.wrap_future(future)

    def _done(self) -> None:
        self.busy -= 1

    def close(self) -> None:
        """Wait for what runs; what only waits is dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class Few:
    """`async with few:` lets so many in at a time; some may wait, the rest are refused at once.

    For what holds much memory: a picture of ten kilobytes can unfold to a hundred megabytes.
    """

    def __init__(self, at_once: int, most: int) -> None:
        self._room, self._most, self._inside = asyncio.Semaphore(at_once), most, 0

    async def __aenter__(self) -> None:
        if self._inside >= self._most:
            raise overloaded()
        self._inside += 1
        try:
            await self._room.acquire()
        except BaseException:
            self._inside -= 1
            raise

    async def __aexit__(self, *_: object) -> None:
        self._inside -= 1
        self._room.release()


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(what)
