"""What the routes share: the index, its model once it is loaded, and how far the server has come."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from polysem.server.cache import Cache
from polysem.server.encoding import Encoding
from polysem.server.errors import ApiError
from polysem.server.executors import Few, Workers
from polysem.server.jobs import Jobs
from polysem.server.metrics import Metrics
from polysem.server.settings import Settings
from polysem.server.uploads import Uploads

if TYPE_CHECKING:
    from polysem.models import Model
    from polysem.search import Index

Phase = Literal["starting", "ready", "stopping"]
log = logging.getLogger("polysem.server")


class State:
    """Torch and the model take seconds to load; until then the server says "starting" and answers what it can."""

    def __init__(self, place: str, settings: Settings, metrics: Metrics, model: Model | str | Path | None) -> None:
        self.place, self.settings, self.metrics = place, settings, metrics
        self._given = model
        self.phase: Phase = "starting"
        self.failed: Exception | None = None
        self._index: Index | None = None
        self.loaded: Encoding | None = None
        limits = settings.limits
        self.workers = Workers(ThreadPoolExecutor(limits.threads, thread_name_prefix="search"), limits.work)
        self.uploads = Uploads(settings.limits)
        self.pictures = Few(limits.pictures, limits.work)
        self.thumbnails: Cache[tuple[str | None, str], bytes] = Cache(limits.thumbnail_bytes, weigh=len)
        self.jobs = Jobs()
        self.kept: Cache[Hashable, Any] = Cache(8)
        """What was worked out for a version of the index."""
        self.working_out: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._loading: asyncio.Task[None] | None = None

    @property
    def index(self) -> Index:
        if self._index is None:
            raise _not_yet()
        return self._index

    @property
    def model(self) -> Model:
        self.check_ready()
        return self.index.model

    @property
    def encoding(self) -> Encoding:
        if self.loaded is None:
            raise _not_yet()
        return self.loaded

    def check_ready(self) -> None:
        """Turn a request away until the model is loaded."""
        _ = self.encoding

    @property
    def writable(self) -> bool:
        return not self.settings.read_only and self.settings.token is not None

    def start(self, failed: Callable[[Exception], None] | None = None) -> None:
        """Load in the background. failed: told if that is impossible."""

        async def load() -> None:
            try:
                loop = asyncio.get_running_loop()
                self._index = await loop.run_in_executor(None, self._open)
                await loop.run_in_executor(None, self._warm_up, self._index)
                self.loaded = Encoding(self._index.model, self.settings.limits)
                if self.phase == "starting":
                    self.phase = "ready"
            except Exception as error:
                self.failed = error
                if failed is None:
                    log.error("The index or its model cannot be loaded: %s", error)
                else:
                    failed(error)

        self._loading = asyncio.create_task(load())

    def _open(self) -> Index:
        from polysem.search import Index

        return Index.open(self.place, model=self._given)

    def _warm_up(self, index: Index) -> None:
        """Load the model, and let the first client not be the one who waits for what is only done once."""
        for text in ("warm", "up"):
            found = index.model.encode_texts([text])[0].numpy()
            for side, count in index.stats().by_side.items():
                if count:
                    index.search(vectors=found, find=side, k=1)  # type: ignore[arg-type]

    async def stop(self) -> None:
        """Finish what runs, then let go of everything."""
        self.phase = "stopping"
        if self._loading is not None and not self._loading.done():
            await asyncio.wait([self._loading])
        loop = asyncio.get_running_loop()
        closing = [self.workers.close, self.jobs.close]
        closing += [] if self.loaded is None else [self.loaded.close]
        for close in closing:
            await loop.run_in_executor(None, close)
        if self._index is not None:
            self._index.close()


def _not_yet() -> ApiError:
    return ApiError(503, "The model is still loading. Try again in a moment.", "starting", {"Retry-After": "1"})
