"""Queries to sets: through the cache, and through the encoder in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from polysem.server.batching import Batcher
from polysem.server.cache import Cache
from polysem.server.errors import ApiError
from polysem.server.executors import Workers
from polysem.server.settings import Limits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    from polysem.models import Model

    Set = NDArray[np.float32]


class Encoding:
    """Of one model. `await text("a dog")` and `await image(picture)` give (L, D) and (K, D).

    beside: one thread for what else takes the model, explaining and adding, one after the other.
    """

    def __init__(self, model: Model, limits: Limits) -> None:
        from polysem.cpu_blocks import single_threaded_pool

        self._model = model
        self.cache: Cache[str, Set] = Cache(limits.cached)
        # Towers that read padding, as some released code does, would let neighbours change an embedding.
        texts, images = (1 if tower.reads_padding else limits.batch for tower in (model.text, model.image))
        # Torch on one thread each: clients are served side by side, and a small batch split over busy cores takes
        # many times as long (20 ms became half a second).
        self.texts: Batcher[str, Set] = Batcher(self._texts, texts, limits.work, single_threaded_pool(1))
        few = max(1, images // 4)
        self.images: Batcher[Image, Set] = Batcher(self._images, few, limits.work // 4 or 1, single_threaded_pool(1))
        self.beside = Workers(single_threaded_pool(1), limits.work // 4 or 1)

    async def text(self, text: str) -> Set:
        known = self.cache.get(text)
        if known is None:
            known = await self.texts(text)
            self.cache.put(text, known)
        return known

    async def image(self, image: Image) -> Set:
        if self._model.image.encoder.takes == "features":
            raise ApiError(400, "This index's model reads precomputed features, not pictures. Search from an item.")
        return await self.images(image)

    def _texts(self, texts: Sequence[str]) -> list[Set]:
        return _sets(self._model.encode_texts(list(texts)))

    def _images(self, images: Sequence[Image]) -> list[Set]:
        return _sets(self._model.encode_images(list(images)))

    def close(self) -> None:
        self.texts.close()
        self.images.close()
        self.beside.close()


def _sets(found: Any) -> list[Set]:
    """Each a copy: a cached set must not keep its whole batch alive."""
    return [each.numpy().copy() for each in found]
