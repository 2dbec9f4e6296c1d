"""Queries to sets: through the cache, and through the encoder in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from polysem.server.batching import Batcher
from polysem.server.cache import Cache
from polysem.server.errors import ApiError
from polysem.server.settings import Limits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    from polysem.models import Model

    Set = NDArray[np.float32]


class Encoding:
    """Of one model. `await text("a dog")` and `await image(picture)` give (L, D) and (K, D)."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self._model = model
        self.cache: Cache[str, Set] = Cache(limits.cached)
        # Towers that read padding, as some released code does, would let neighbours change an embedding.
        texts, images = (1 if tower.reads_padding else limits.batch for tower in (model.text, model.image))
        self.texts: Batcher[str, Set] = Batcher(self._texts, texts, limits.work, "texts")
        self.images: Batcher[Image, Set] = Batcher(self._images, max(1, images // 4), limits.work // 4 or 1, "images")

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


def _sets(found: Any) -> list[Set]:
    """Each a copy: a cached set must not keep its whole batch alive."""
    return [each.numpy().copy() for each in found]
