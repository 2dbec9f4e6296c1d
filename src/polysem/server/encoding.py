"""Queries to sets: through a cache, and through the encoder in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cachetools import LRUCache

from polysem.server.errors import ApiError, OverloadError, log
from polysem.server.executors import WorkerPool
from polysem.server.metrics import Metrics
from polysem.server.settings import Limits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image
    from torch import Tensor

    from polysem.models import Model

    Set = NDArray[np.float32]

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")


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


class QueryEncoding:
    """The encoders of one model: `await text("a dog")` gives (L, D), `await image(picture)` (K, D).

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
        few = limits.work // 4 or 1
        self.images: MicroBatcher[Image, Set] = MicroBatcher(
            lambda batch: self._normalise(model.encode_images(list(batch))),
            max(1, images // 4),
            few,
            single_threaded_pool(1),
        )
        self.model_thread = WorkerPool(single_threaded_pool(1), few)

    async def text(self, text: str) -> Set:
        vectors = self.cache.get(text)
        (self._metrics.cache_misses if vectors is None else self._metrics.cache_hits).inc()
        if vectors is None:
            self.cache[text] = vectors = await self.texts(text)
        return vectors

    async def image(self, image: Image) -> Set:
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
