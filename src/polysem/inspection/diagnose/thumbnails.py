"""Small pictures inside the page."""

from __future__ import annotations

import base64
import io
from html import escape

from polysem.data.collection import Collection
from polysem.data.images import is_image
from polysem.data.video import is_video, load_still
from polysem.errors import PolysemError

SIDE = 112


class Thumbnails:
    """Of a collection's items; one that is no picture, or cannot be read, is shown by its name."""

    def __init__(self, items: Collection) -> None:
        self.items = items

    def tag(self, item: int) -> str:
        """An <img>, or a paragraph."""
        own = self.items[item]
        path = own.media.path
        if own.media.is_features or not (is_image(path) or is_video(path)):
            return f"<p>{escape(own.id)}</p>"
        try:
            picture = load_still(path)
        except (OSError, PolysemError):
            return f"<p>{escape(own.id)} (cannot be read)</p>"
        picture.thumbnail((2 * SIDE, 2 * SIDE))
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=70)
        data = base64.b64encode(file.getvalue()).decode()
        return f'<img src="data:image/jpeg;base64,{data}" alt="{escape(own.id)}" title="{escape(own.id)}">'
