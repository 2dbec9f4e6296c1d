"""Work off the event loop: bounded thread pools, micro-batches, and background jobs with kept results."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from polysem.server.errors import OverloadError, log

T = TypeVar("T")
InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
KEPT_JOBS = 8
WAITING_JOBS = 4
ReportShare = Callable[[float], None]
"""Called with the share that is done, 0 to 1."""


class WorkerPool:
    """`await workers.run(function, …)` on a thread. Beyond `most` waiting or running, it is refused at once.

    A request may give up; its thread cannot, so its place is free only when the thread is.
    """

    def __init__(self, pool: ThreadPoolExecutor, most: int) -> None:
        self._pool, self._most = pool, most
        self.busy = self.refused = 0

    async def run(self, work: Callable[..., T], *given: Any, **named: Any) -> T:
        if self.busy >= self._most:
            self.refused += 1
            raise OverloadError
        loop = asyncio.get_running_loop()
        self.busy += 1
        future: Future[T] = self._pool.submit(work, *given, **named)
        future.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(self._release))
        return await asyncio.wrap_future(future)

    def _release(self) -> None:
        self.busy -= 1

    def close(self) -> None:
        """Wait for what runs; what only waits is dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class MicroBatcher(Generic[InputT, OutputT]):
    """Encodes what many clients send in batches, without waiting for a batch to fill.

    A batch is what came in while the one before it was being encoded: a query alone is encoded at once, and
    batches grow by themselves under load.

    Args:
        encode: a list of inputs to as many outputs.
        size: inputs in a batch at most.
        most: inputs waiting at most; more are refused.
        pool: the thread that encodes.
    """

    def __init__(
        self, encode: Callable[[Sequence[InputT]], Sequence[OutputT]], size: int, most: int, pool: ThreadPoolExecutor
    ) -> None:
        self._encode, self._size, self._most, self._pool = encode, size, most, pool
        self._waiting: list[tuple[InputT, asyncio.Future[OutputT]]] = []
        self._running: asyncio.Task[None] | None = None
        self.batches = self.items = 0

    async def __call__(self, item: InputT) -> OutputT:
        if len(self._waiting) >= self._most:
            raise OverloadError
        future: asyncio.Future[OutputT] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            # A client that has disconnected is not worth encoding for.
            batch = [entry for entry in self._waiting[: self._size] if not entry[1].done()]
            del self._waiting[: self._size]
            if not batch:
                continue
            results: Sequence[Any]
            try:
                results = await loop.run_in_executor(self._pool, self._encode_each, [item for item, _ in batch])
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

    def _encode_each(self, items: Sequence[InputT]) -> list[OutputT | Exception]:
        """Of each input its output or its own error: one bad query must not fail its neighbours."""
        try:
            return list(self._encode(items))
        except Exception as error:
            if len(items) == 1:
                return [error]
            log.debug("A batch of %d failed (%s); encoding one at a time.", len(items), error)
            return [self._encode_each([item])[0] for item in items]

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


class AdmissionSlots:
    """`async with slots.admit():` lets so many in at a time; some may wait, the rest are refused at once.

    For what holds much memory: a picture of ten kilobytes can decode to a hundred megabytes.
    """

    def __init__(self, at_once: int, most: int) -> None:
        self._slots, self._most, self._inside = asyncio.Semaphore(at_once), most, 0

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        if self._inside >= self._most:
            raise OverloadError
        self._inside += 1
        try:
            async with self._slots:
                yield
        finally:
            self._inside -= 1


class _ClosingError(Exception):
    """The server ends, and nobody will ask for this any more."""


@dataclass
class Job:
    """progress: 0 to 1. error: why there is no result. version: of what it is made from.

    outdated: another version was requested while it ran. delivered: somebody has seen that it is ready.
    """

    version: Hashable
    progress: float = 0.0
    ready: bool = False
    result: Any = None
    error: Exception | None = None
    outdated: bool = False
    delivered: bool = False


class Jobs:
    """One job at a time, on a thread of its own. Results are kept by their key."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="background")
        self._jobs: OrderedDict[Hashable, Job] = OrderedDict()
        self._guard = threading.Lock()
        self._closing = False

    def get(self, key: Hashable, work: Callable[[ReportShare], Any], version: Hashable = None) -> Job:
        """The job of this key, begun if there is none.

        It is begun anew for another version and after a failure. But its end is delivered once to who waited for it:
        else an index that is being added to would never be shown, and a failure never be known.
        """
        with self._guard:
            job = self._jobs.get(key)
            if job is not None and not job.ready:
                job.outdated = job.outdated or job.version != version
            elif job is not None:
                awaited = not job.delivered and (job.outdated or job.error is not None)
                job.delivered = True
                if not awaited and (job.error is not None or job.version != version):
                    job = None
            if job is None:
                if sum(not each.ready for each in self._jobs.values()) >= WAITING_JOBS:
                    raise OverloadError
                job = self._jobs[key] = Job(version)
                self._pool.submit(self._run, job, work)
            self._jobs.move_to_end(key)
            finished = [each for each, own in self._jobs.items() if own.ready]
            for each in finished[: max(0, len(self._jobs) - KEPT_JOBS)]:
                del self._jobs[each]
            return job

    def _run(self, job: Job, work: Callable[[ReportShare], Any]) -> None:
        def report(share: float) -> None:
            if self._closing:
                raise _ClosingError
            job.progress = min(1.0, max(job.progress, share))

        try:
            job.result = work(report)
        except Exception as error:
            if not isinstance(error, _ClosingError):
                log.exception("A background job failed")
            job.error = error
        job.progress, job.ready = 1.0, True

    def close(self) -> None:
        """Give up what runs, at its next report."""
        self._closing = True
        self._pool.shutdown(wait=True, cancel_futures=True)
