"""Many clients' queries through the encoder together.

Nobody waits for a batch to fill: a batch is what came in while the one before it was being encoded. Alone, a query is
encoded at once; in a crowd, batches grow by themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from polysem.server.errors import overloaded

Given = TypeVar("Given")
Made = TypeVar("Made")
log = logging.getLogger("polysem.server")


class Batcher(Generic[Given, Made]):
    """encode: a list to as many results. size: of a batch. most: waiting at once; more are refused. pool: a thread."""

    def __init__(
        self, encode: Callable[[Sequence[Given]], Sequence[Made]], size: int, most: int, pool: ThreadPoolExecutor
    ) -> None:
        self._encode, self._size, self._most, self._pool = encode, size, most, pool
        self._waiting: list[tuple[Given, asyncio.Future[Made]]] = []
        self._running: asyncio.Task[None] | None = None
        self.batches = self.items = 0

    async def __call__(self, given: Given) -> Made:
        if len(self._waiting) >= self._most:
            raise overloaded()
        future: asyncio.Future[Made] = asyncio.get_running_loop().create_future()
        self._waiting.append((given, future))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            # Who has given up meanwhile is not worth encoding for.
            batch = [each for each in self._waiting[: self._size] if not each[1].done()]
            del self._waiting[: self._size]
            if not batch:
                continue
            results: Sequence[Any]
            try:
                results = await loop.run_in_executor(self._pool, self._encoded, [given for given, _ in batch])
            except Exception as error:  # the pool itself: it is closing
                results = [error] * len(batch)
            self.batches, self.items = self.batches + 1, self.items + len(batch)
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    def _encoded(self, given: Sequence[Given]) -> list[Made | Exception]:
        """Of each its result, or its own error: one bad query must not spoil its neighbours'."""
        try:
            return list(self._encode(given))
        except Exception as error:
            if len(given) == 1:
                return [error]
            log.debug("A batch of %d failed (%s); encoding one at a time.", len(given), error)
            return [self._encoded([each])[0] for each in given]

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
