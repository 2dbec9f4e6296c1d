"""What the routes share: the index, its encoders once the model is loaded, and the phase of the server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cachetools import LRUCache, TTLCache
from fastapi import Depends, Request

from polysem.server.errors import ApiError, OverloadError, log
from polysem.server.executors import AdmissionSlots, Jobs, MicroBatcher, WorkerPool
from polysem.server.metrics import Metrics
from polysem.server.settings import Limits, Settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image
    from torch import Tensor

    from polysem.models import Model
    from polysem.search import Index

    Set = NDArray[np.float32]

Phase = Literal["starting", "ready", "stopping"]


class Upload(NamedTuple):
    """An uploaded picture: its embedding (K, D), and a JPEG thumbnail for the page. The picture itself is not kept."""

    embedding: Set
    thumbnail: bytes


class BatchedQueryEncoder:
    """The encoders of one model: `await encode_text("a dog")` gives (L, D), `await encode_image(picture)` (K, D).

    Attributes:
        model_thread: one thread for what else needs the model (explaining, adding), one piece of work after the other.
    """

    def __init__(self, model: Model, limits: Limits, metrics: Metrics) -> None:
        from polysem.cpu_blocks import single_threaded_pool

        self.model, self._metrics = model, metrics
        self.cache: LRUCache[str, Set] = LRUCache(limits.cached)
        # Towers that read padding, as some released code does, would let neighbours change an embedding.
        texts, images = (1 if tower.reads_padding else limits.batch for tower in (model.text, model.image))
        # Torch on one thread each: clients are served side by side, and a small batch split over busy cores takes
        # many times as long (20 ms became half a second).
        self.texts: MicroBatcher[str, Set] = MicroBatcher(
            lambda batch: self._normalise(model.encode_texts(list(batch))), texts, limits.work, single_threaded_pool(1)
        )
        few, size = limits.work // 4 or 1, max(1, images // 4)
        self.images: MicroBatcher[Image, Set] = MicroBatcher(
            lambda batch: self._normalise(model.encode_images(list(batch))), size, few, single_threaded_pool(1)
        )
        self.model_thread = WorkerPool(single_threaded_pool(1), few)

    async def encode_text(self, text: str) -> Set:
        vectors = self.cache.get(text)
        (self._metrics.cache_misses if vectors is None else self._metrics.cache_hits).inc()
        if vectors is None:
            self.cache[text] = vectors = await self.texts(text)
        return vectors

    async def encode_image(self, image: Image) -> Set:
        if self.model.image.encoder.takes == "features":
            raise ApiError(400, "This index's model reads precomputed features, not pictures. Search from an item.")
        return await self.images(image)

    def _normalise(self, sets: Tensor) -> list[Set]:
        """The sets as the index stores them. Copies: a view would keep its whole batch alive while one is cached."""
        from polysem.search.encoder import normalise_sets

        return [vectors.copy() for vectors in normalise_sets(sets.numpy(), self.model.similarity.config)]

    def close(self) -> None:
        for each in (self.texts, self.images, self.model_thread):
            each.close()


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
        self.loaded: BatchedQueryEncoder | None = None
        limits = settings.limits
        self.workers = WorkerPool(ThreadPoolExecutor(limits.threads, thread_name_prefix="search"), limits.work)
        self.uploads: TTLCache[str, Upload] = TTLCache(limits.uploads, limits.upload_seconds)
        self.decoding = AdmissionSlots(limits.pictures, limits.work)
        self.thumbnails: LRUCache[tuple[str | None, str], bytes] = LRUCache(limits.thumbnail_bytes, getsizeof=len)
        self.jobs = Jobs()
        self.computed: LRUCache[Hashable, Any] = LRUCache(8)
        self.computing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._loading: asyncio.Task[None] | None = None

    def _require_loaded(self) -> tuple[Index, BatchedQueryEncoder]:
        if self._index is None or self.loaded is None:
            raise OverloadError("The model is still loading.", "starting")
        return self._index, self.loaded

    @property
    def index(self) -> Index:
        return self._require_loaded()[0]

    @property
    def encoding(self) -> BatchedQueryEncoder:
        return self._require_loaded()[1]

    @property
    def writable(self) -> bool:
        return not self.settings.read_only and self.settings.token is not None

    def start(self, on_failure: Callable[[Exception], None] | None = None) -> None:
        """Load in the background; `on_failure` is called if that is impossible."""

        async def load() -> None:
            try:
                self._index = await asyncio.to_thread(self._open)
                await asyncio.to_thread(self._warm_up, self._index)
                self.loaded = BatchedQueryEncoder(self._index.model, self.settings.limits, self.metrics)
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
