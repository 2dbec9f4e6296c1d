"""Work that takes longer than a client should wait: begun when first asked for, kept until the index changes."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from polysem.server.errors import overloaded

KEPT = 8
WAITING = 4
log = logging.getLogger("polysem.server")
Report = Callable[[float], None]
"""Called with the share that is done, 0 to 1."""


@dataclass
class Job:
    """progress: 0 to 1. error: why there is no result."""

    progress: float = 0.0
    ready: bool = False
    result: Any = None
    error: Exception | None = None


class Jobs:
    """One job at a time, on a thread of its own. Results are kept by their key."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="background")
        self._jobs: OrderedDict[Hashable, Job] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, key: Hashable, work: Callable[[Report], Any]) -> Job:
        """The job of this key, begun if there is none. A job that failed is begun anew the next time."""
        with self._guard:
            job = self._jobs.get(key)
            if job is None:
                if sum(not each.ready for each in self._jobs.values()) >= WAITING:
                    raise overloaded()
                job = self._jobs[key] = Job()
                self._pool.submit(self._run, key, job, work)
                self._forget()
            self._jobs.move_to_end(key)
            return job

    def _run(self, key: Hashable, job: Job, work: Callable[[Report], Any]) -> None:
        def report(share: float) -> None:
            job.progress = min(1.0, max(job.progress, share))

        try:
            job.result = work(report)
        except Exception as error:
            log.exception("A background job failed")
            job.error = error
            with self._guard:
                self._jobs.pop(key, None)
        job.progress, job.ready = 1.0, True

    def _forget(self) -> None:
        finished = [key for key, job in self._jobs.items() if job.ready]
        for key in finished[: max(0, len(self._jobs) - KEPT)]:
            del self._jobs[key]

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
