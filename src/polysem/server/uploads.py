"""Pictures to search with: for an hour a token stands for a picture's embedding. The picture itself is not kept."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polysem.server.cache import Cache
from polysem.server.errors import ApiError
from polysem.server.settings import Limits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

THUMBNAIL = 320


@dataclass(frozen=True)
class Upload:
    """embedding: (K, D). thumbnail: JPEG, for the page to show what was asked."""

    embedding: NDArray[np.float32]
    thumbnail: bytes


class Uploads:
    def __init__(self, limits: Limits) -> None:
        self.seconds = limits.upload_seconds
        self._kept: Cache[str, Upload] = Cache(limits.uploads, limits.upload_seconds)

    def put(self, upload: Upload) -> str:
        """The token by which it can be asked for."""
        token = secrets.token_urlsafe(18)
        self._kept.put(token, upload)
        return token

    def get(self, token: str) -> Upload:
        found = self._kept.get(token)
        if found is None:
            raise ApiError(404, "This upload has expired, or never was. Send the picture again.")
        return found

    def __len__(self) -> int:
        return len(self._kept)
