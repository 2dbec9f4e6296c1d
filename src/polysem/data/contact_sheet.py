"""A page of pictures with their captions: the quickest way to see what a collection is like."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Mapping
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from polysem.atomic_write import replace_file
from polysem.data.collection import Collection, DataError
from polysem.data.images import ImageError
from polysem.data.video import VideoError, load_still

_CELL, _PICTURE, _MARGIN, _LINE = 320, 300, 10, 19
_INK, _PAPER, _FAINT = "#222222", "#fbfaf7", "#8a8a8a"


def write_contact_sheet(
    collection: Collection,
    out: Path,
    count: int = 12,
    columns: int = 4,
    seed: int = 0,
    times: Mapping[str, float] | None = None,
) -> Path:
    """Write a PNG of `count` items drawn at random (the same for the same seed), each with up to five captions.

    times: by id, the second of a video whose frame is shown; the one in its middle if left out.
    """
    if collection.content == "features":
        raise DataError(f"{collection.name} holds {collection.kind}, not pictures: there is nothing to put on a sheet.")
    drawn = random.Random(seed).sample(range(len(collection)), min(count, len(collection)))
    items = [collection[i] for i in sorted(drawn)]
    font = ImageFont.load_default(size=14)
    texts = []
    for item in items:
        wrapped = [f"· {caption}" for caption in item.captions[:5]]
        lines = [line for text in wrapped for line in textwrap.wrap(text, 44, subsequent_indent="  ")]
        texts.append([(textwrap.shorten(item.id, 42), _FAINT), *((line, _INK) for line in lines)])
    rows = [range(start, min(start + columns, len(items))) for start in range(0, len(items), columns)]
    heights = [_PICTURE + 3 * _MARGIN + _LINE * max(len(texts[i]) for i in row) for row in rows]
    sheet = Image.new("RGB", (min(columns, len(items)) * _CELL + _MARGIN, sum(heights) + _MARGIN), _PAPER)
    draw = ImageDraw.Draw(sheet)
    top = _MARGIN
    for row, height in zip(rows, heights, strict=True):
        for column, i in enumerate(row):
            left = _MARGIN + column * _CELL
            try:
                still = load_still(items[i].media.path, (times or {}).get(items[i].id))
                still = ImageOps.pad(still, (_PICTURE, _PICTURE), color=_PAPER)
            except (ImageError, VideoError):
                still = Image.new("RGB", (_PICTURE, _PICTURE), "#e8d0d0")
            sheet.paste(still, (left, top))
            for line, (text, colour) in enumerate(texts[i]):
                draw.text((left, top + _PICTURE + _MARGIN + line * _LINE), text, fill=colour, font=font)
        top += height
    with replace_file(out) as aside:
        sheet.save(aside, format="PNG")
    return out
