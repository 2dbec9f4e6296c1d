"""What the routes share: the index, its model once it is loaded, and the phase of the server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cachetools import LRUCache, TTLCache
from fastapi import Depends, Request

from polysem.server.encoding import QueryEncoding
from polysem.server.errors import OverloadError, log
from polysem.server.executors import AdmissionSlots, Jobs, WorkerPool
from polysem.server.metrics import Metrics
from polysem.server.settings import Settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from polysem.models import Model
    from polysem.search import Index

Phase = Literal["starting", "ready", "stopping"]


class StartingError(OverloadError):
    def __init__(self) -> None:
        super().__init__("The model is still loading.", "starting")


class Upload(NamedTuple):
    """An uploaded picture: its embedding (K, D), and a JPEG thumbnail for the page. The picture itself is not kept."""

    embedding: NDArray[np.float32]
    thumbnail: bytes


class State:
    """The state of a server. Loading the model takes seconds; until then the phase is "starting", and `index` and
    `encoding` raise.

    Args:
        path: the folder of the index, or its address.
        model: the index's model, or where it is now.

    Attributes:
        loaded: the encoders, None while the model is loading.
        uploads: by token, for `upload_seconds`.
        decoding: slots for uploads that are being decoded.
        computed: what was computed for a version of the index, by name and version.
    """

    def __init__(self, path: str, settings: Settings, metrics: Metrics, model: Model | str | Path | None) -> None:
        self.path, self.settings, self.metrics = path, settings, metrics
        self._model = model
        self.phase: Phase = "starting"
        self.failed: Exception | None = None
        self._index: Index | None = None
        self.loaded: QueryEncoding | None = None
        limits = settings.limits
        self.workers = WorkerPool(ThreadPoolExecutor(limits.threads, thread_name_prefix="search"), limits.work)
        self.uploads: TTLCache[str, Upload] = TTLCache(limits.uploads, limits.upload_seconds)
        self.decoding = AdmissionSlots(limits.pictures, limits.work)
        self.thumbnails: LRUCache[tuple[str | None, str], bytes] = LRUCache(limits.thumbnail_bytes, getsizeof=len)
        self.jobs = Jobs()
        self.computed: LRUCache[Hashable, Any] = LRUCache(8)
        self.computing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._loading: asyncio.Task[None] | None = None

    @property
    def index(self) -> Index:
        if self._index is None or self.loaded is None:
            raise StartingError
        return self._index

    @property
    def encoding(self) -> QueryEncoding:
        if self.loaded is None:
            raise StartingError
        return self.loaded

    @property
    def writable(self) -> bool:
        return not self.settings.read_only and self.settings.token is not None

    def start(self, on_failure: Callable[[Exception], None] | None = None) -> None:
        """Load in the background; `on_failure` is called if that is impossible."""

        async def load() -> None:
            try:
                self._index = await asyncio.to_thread(self._open)
                await asyncio.to_thread(self._warm_up, self._index)
                self.loaded = QueryEncoding(self._index.model, self.settings.limits, self.metrics)
                if self.phase == "starting":
                    self.phase = "ready"
            except Exception as error:
                self.failed = error
                if on_failure is None:
                    log.error("The index or its model cannot be loaded: %s", error)
                else:
                    on_failure(error)

        self._loading = asyncio.create_task(load())

    def _open(self) -> Index:
        from polysem.search import Index

        return Index.open(self.path, model=self._model)

    def _warm_up(self, index: Index) -> None:
        """Load the model, and do once what the first search would have to wait for."""
        for text in ("warm", "up"):
            for side, count in index.stats().by_side.items():
                if count:
                    index.search(text, find=side, k=1)  # type: ignore[arg-type]

    async def stop(self) -> None:
        """Finish what runs, then close everything."""
        self.phase = "stopping"
        if self._loading is not None and not self._loading.done():
            await asyncio.wait([self._loading])
        for each in (self.workers, self.jobs, self.loaded):
            if each is not None:
                await asyncio.to_thread(each.close)
        if self._index is not None:
            self._index.close()


def _find_state(request: Request) -> State:
    state: State = request.app.state.polysem
    return state


ServerState = Annotated[State, Depends(_find_state)]
