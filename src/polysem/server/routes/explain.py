"""POST /explain: what of an image answers a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from polysem.server.auth import AuthenticatedRoute, JsonBody, Reading
from polysem.server.errors import ApiError
from polysem.server.media import FORMATS, detect_video_type, open_item_file
from polysem.server.routes.schemas import ERRORS, ExplainAnswer, ExplainRequest, moment_info
from polysem.server.routes.shared import BASE, Shared

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from polysem.inspection import Explanation, TokenBoxes
    from polysem.models import Model
    from polysem.search import Index
    from polysem.search.store import IndexedItem

_MOST_FRAMES = 1000


def explain_item(index: Index, item: IndexedItem, caption: str, pixels: int) -> dict[str, Any]:
    """item: the image, or video, as the index knows it."""
    from polysem.data.video import VideoError
    from polysem.inspection import explain
    from polysem.models.video import valid_duration

    model = index.model
    try:
        found = explain(
            model, _content(model, item, pixels), caption, duration=valid_duration(item.metadata.get("duration"))
        )
    except VideoError:
        raise ApiError(404, "The video of this item cannot be read any more.") from None
    return explanation_json(found, [_nearest(index, element) for element in found.image.vectors])


def _content(model: Model, item: IndexedItem, pixels: int) -> Any:
    """What `explain` takes: the picture, the video's path, or the features of its frames."""
    from polysem.data.images import ImageError, decode_image
    from polysem.data.video import is_video

    encoder, path = model.image.encoder, Path(item.path or "")
    if encoder.takes == "features":
        if encoder.kind != "video" or path.suffix != ".npy":
            raise ApiError(400, "This index's model reads precomputed features: there is no picture to explain on.")
        return _frame_features(item.path)
    if encoder.kind == "video" and is_video(path):
        with open_item_file(item.path, largest=None) as file:  # whether it may be given out at all
            detect_video_type(file)
        return path
    with open_item_file(item.path) as file:
        try:
            return decode_image(file, "picture", pixels, tuple(FORMATS))
        except ImageError:
            raise ApiError(404, "The picture of this item cannot be read any more.") from None


def _frame_features(stored: str | None) -> NDArray[Any]:
    import numpy as np

    with open_item_file(stored, features=True) as file:
        try:
            found: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        except Exception as error:  # a damaged header raises almost anything
            raise ApiError(404, "The features of this item cannot be read any more.") from error
    if found.ndim != 2 or found.dtype.kind != "f" or len(found) > _MOST_FRAMES:
        raise ApiError(400, f"An explanation takes up to {_MOST_FRAMES:,} frames of a video.")
    return found.astype(np.float32)


def _nearest(index: Index, element: Tensor) -> dict[str, Any] | None:
    """The text of the index that is closest to one element of the image, as a set of its own."""
    if not index.stats().by_side.get("text"):
        return None
    vector = element.float().numpy()[None]
    best = index.search(vectors=vector / (vector**2).sum() ** 0.5, find="text", k=1)
    return {"id": best[0].id, "text": best[0].caption or "", "score": best[0].score} if len(best) else None


def explanation_json(found: Explanation, nearest: list[dict[str, Any] | None]) -> dict[str, Any]:
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
        "film": _film(found),
    }


def _film(found: Explanation) -> dict[str, Any] | None:
    """Of a video: its frames, when each is, what each scores alone, and what it adds where scores are such sums."""
    if found.moment is None:
        return None
    info = moment_info(found.moment)
    return {
        "times": list(found.places.times) or None,
        "scores": list(found.moment.curve),
        "adds": None if found.winning is None else found.winning.image_parts.tolist(),
        "moment": None if info is None else info.model_dump(),
    }


def _words(words: list[str], weights: Tensor) -> list[dict[str, Any]]:
    return [{"word": word, "weight": weight} for word, weight in zip(words, weights.tolist(), strict=True)]


def _placed(places: TokenBoxes, weights: Tensor) -> dict[str, Any]:
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
    if places.kind == "frames":
        return {"kind": "frames", "values": weights.tolist()}
    there = places.located
    if places.kind == "boxes" and bool(there.any()):
        boxes = places.boxes[there] / places.boxes.new_tensor([width, height, width, height])
        return {
            "kind": "boxes",
            "boxes": [[*box, weight] for box, weight in zip(boxes.tolist(), weights[there].tolist(), strict=True)],
        }
    return {"kind": "none"}


router = APIRouter(
    prefix=BASE, route_class=AuthenticatedRoute, tags=["inspection"], dependencies=[Reading, JsonBody], responses=ERRORS
)


@router.post("/explain", response_model=ExplainAnswer)
async def explain(state: Shared, asked: ExplainRequest) -> ExplainAnswer:
    """The elements of an image, where each looks, and what each contributes to its score with a text."""
    index, threads = state.index, state.encoding.model_thread
    items = await state.workers.run(index.items, [asked.item], "image")
    if not items:
        raise ApiError(404, "The index holds no such image.")
    text = asked.text
    if asked.with_ is not None:
        said = await state.workers.run(index.items, [asked.with_], "text")
        text = said[0].caption if said else None
        if not text:
            raise ApiError(404, "The index holds no such text.")
    found = await threads.run(explain_item, index, items[0], text, state.settings.limits.pixels)
    return ExplainAnswer(**found)
