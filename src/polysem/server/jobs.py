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


class _GivenUpError(Exception):
    """The server ends, and nobody will ask for this any more."""


@dataclass
class Job:
    """progress: 0 to 1. error: why there is no result. version: of what it is made from.

    overtaken: a newer version was asked for while it ran. told: somebody has seen that it is ready.
    """

    version: Hashable
    progress: float = 0.0
    ready: bool = False
    result: Any = None
    error: Exception | None = None
    overtaken: bool = False
    told: bool = False


class Jobs:
    """One job at a time, on a thread of its own. Results are kept by their key."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="background")
        self._jobs: OrderedDict[Hashable, Job] = OrderedDict()
        self._guard = threading.Lock()
        self._closing = False

    def get(self, key: Hashable, work: Callable[[Report], Any], version: Hashable = None) -> Job:
        """The job of this key, begun if there is none.

        It is begun anew for another version and after a failure. But who waited for it is told how it ended first: else
        an index that is being added to would never be shown, and a failure never be known.
        """
        with self._guard:
            job = self._jobs.get(key)
            if job is not None and not job.ready:
                job.overtaken = job.overtaken or job.version != version
            elif job is not None:
                owed = not job.told and (job.overtaken or job.error is not None)
                job.told = True
                if not owed and (job.error is not None or job.version != version):
                    job = None
            if job is None:
                if sum(not each.ready for each in self._jobs.values()) >= WAITING:
                    raise overloaded()
                job = self._jobs[key] = Job(version)
                self._pool.submit(self._run, job, work)
                self._forget()
            self._jobs.move_to_end(key)
            return job

    def _run(self, job: Job, work: Callable[[Report], Any]) -> None:
        def report(share: float) -> None:
            if self._closing:
                raise _GivenUpError
            job.progress = min(1.0, max(job.progress, share))

        try:
            job.result = work(report)
        except Exception as error:
            if not isinstance(error, _GivenUpError):
                log.exception("A background job failed")
            job.error = error
        job.progress, job.ready = 1.0, True

    def _forget(self) -> None:
        finished = [key for key, job in self._jobs.items() if job.ready]
        for key in finished[: max(0, len(self._jobs) - KEPT)]:
            del self._jobs[key]

    def close(self) -> None:
        """Give up what runs, at its next report."""
        self._closing = True
        self._pool.shutdown(wait=True, cancel_futures=True)
