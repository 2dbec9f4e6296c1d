"""Why an item matches: an `Explanation` in the shape that the page draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polysem.server.errors import ApiError
from polysem.server.images import FORMATS, opened

if TYPE_CHECKING:
    from torch import Tensor

    from polysem.inspection import Explanation, Places
    from polysem.search import Index


def explained(index: Index, stored: str | None, caption: str, pixels: int) -> dict[str, Any]:
    """stored: where the index has the image's file."""
    from polysem.data.images import ImageError, decode_image
    from polysem.inspection import explain

    model = index.model
    if model.image.encoder.takes == "features":
        raise ApiError(400, "This index's model reads precomputed features: there is no picture to explain on.")
    with opened(stored) as file:
        try:
            image = decode_image(file, "picture", pixels, tuple(FORMATS))
        except ImageError:
            raise ApiError(404, "The picture of this item cannot be read any more.") from None
    found = explain(model, image, caption)
    return as_page(found, [_nearest(index, element) for element in found.image.vectors])


def _nearest(index: Index, element: Tensor) -> dict[str, Any] | None:
    """The text of the index that is closest to one element of the image, as a set of its own."""
    if not index.stats().by_side.get("text"):
        return None
    vector = element.float().numpy()[None]
    best = index.search(vectors=vector / (vector**2).sum() ** 0.5, find="text", k=1)
    return {"id": best[0].id, "text": best[0].caption or "", "score": best[0].score} if len(best) else None


def as_page(found: Explanation, nearest: list[dict[str, Any] | None]) -> dict[str, Any]:
    width, height = found.places.size
    matrix = found.contributions.matrix
    words = [word.text for word in found.words]
    by_word = found.word_weights[-1]  # (L, words)
    # What an element of the image finds in the text: the words of each text element, by what the pair contributes.
    share = matrix.clamp(min=0)
    share = share / share.sum(1, keepdim=True).clamp(min=1e-12)
    heard = share @ by_word
    last = found.image.last
    elements = [
        {
            "number": number,
            "attention": _placed(found.places, found.image.weights[-1, number]),
            "iterations": [_placed(found.places, step[number]) for step in found.image.weights],
            "nearest_caption": nearest[number],
            "words": _words(words, heard[number]),
        }
        for number in range(len(last))
    ]
    return {
        "score": found.score,
        "similarity": found.similarity,
        "caption": found.caption,
        "how": found.image.how,
        "elements": elements,
        "text": {"elements": [{"number": number, "words": _words(words, row)} for number, row in enumerate(by_word)]},
        "contributions": matrix.tolist(),
        "closeness": found.contributions.closeness.tolist(),
        "scale": {"min": float(last.min()), "max": float(last.max())},
        "width": width,
        "height": height,
    }


def _words(words: list[str], weights: Tensor) -> list[dict[str, Any]]:
    return [{"word": word, "weight": weight} for word, weight in zip(words, weights.tolist(), strict=True)]


def _placed(places: Places, weights: Tensor) -> dict[str, Any]:
    """One element's weights where they lie, in 0..1 of the picture."""
    width, height = (max(side, 1) for side in places.size)
    if places.kind == "cells":
        grid = places.as_map(weights)
        left, top, right, bottom = places.window
        return {
            "kind": "grid",
            "rows": grid.shape[0],
            "cols": grid.shape[1],
            "values": grid.tolist(),
            "window": [left / width, top / height, right / width, bottom / height],
        }
    there = places.located
    if places.kind == "boxes" and bool(there.any()):
        boxes = places.boxes[there] / places.boxes.new_tensor([width, height, width, height])
        return {
            "kind": "boxes",
            "boxes": [[*box, weight] for box, weight in zip(boxes.tolist(), weights[there].tolist(), strict=True)],
        }
    return {"kind": "none"}
