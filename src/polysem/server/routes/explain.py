"""POST /explain: what of an image answers a text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from polysem.server.auth import AuthenticatedRoute, JsonBody, Reading
from polysem.server.errors import ApiError
from polysem.server.media import decode_stored, detect_video_type, open_item_file
from polysem.server.routes.schemas import ERRORS, ExplainAnswer, ExplainRequest
from polysem.server.settings import BASE
from polysem.server.state import ServerState

if TYPE_CHECKING:
    from torch import Tensor

    from polysem.inspection import Explanation, ScoreMap, TokenBoxes
    from polysem.models import Model
    from polysem.search import Index
    from polysem.search.store import IndexedItem

_MOST_FRAMES = 1000
router = APIRouter(
    prefix=BASE, route_class=AuthenticatedRoute, tags=["inspection"], dependencies=[Reading, JsonBody], responses=ERRORS
)


@router.post("/explain", response_model=ExplainAnswer)
async def explain(state: ServerState, asked: ExplainRequest) -> ExplainAnswer:
    """The elements of an image, where each looks, and what each contributes to its score with a text."""
    index, threads = state.index, state.encoding.model_thread
    items = await state.workers.run(index.items, [asked.item], "image")
    if not items:
        raise ApiError(404, "The index holds no such image.")
    text = asked.text
    if asked.with_ is not None:
        texts = await state.workers.run(index.items, [asked.with_], "text")
        text = texts[0].caption if texts else None
        if not text:
            raise ApiError(404, "The index holds no such text.")
    return await threads.run(_explain_item, index, items[0], text, state.settings.limits.pixels)


def _explain_item(index: Index, item: IndexedItem, caption: str, pixels: int) -> ExplainAnswer:
    """item: the image, or video, as the index knows it."""
    from polysem.data.video import VideoError
    from polysem.inspection import explain
    from polysem.models.video import valid_duration

    content, duration = _read_content(index.model, item, pixels), valid_duration(item.metadata.get("duration"))
    try:
        explanation = explain(index.model, content, caption, duration=duration)
    except VideoError:
        raise ApiError(404, "The video of this item cannot be read any more.") from None
    return _to_answer(explanation, [_find_caption(index, element) for element in explanation.image.vectors])


def _read_content(model: Model, item: IndexedItem, pixels: int) -> Any:
    """What `explain` takes: the picture, the video's path, or the features of its frames."""
    import numpy as np

    from polysem.data.video import is_video

    encoder, path = model.image.encoder, Path(item.path or "")
    if encoder.takes != "features" and encoder.kind == "video" and is_video(path):
        with open_item_file(item.path, largest=None) as file:  # whether it may be given out at all
            detect_video_type(file)
        return path
    if encoder.takes != "features":
        with open_item_file(item.path) as file:
            return decode_stored(file, pixels)
    if encoder.kind != "video" or path.suffix != ".npy":
        raise ApiError(400, "This index's model reads precomputed features: there is no picture to explain on.")
    with open_item_file(item.path, features=True) as file:
        try:
            frames = np.lib.format.read_array(file, allow_pickle=False)
        except Exception as error:  # a damaged header raises almost anything
            raise ApiError(404, "The features of this item cannot be read any more.") from error
    if frames.ndim != 2 or frames.dtype.kind != "f" or len(frames) > _MOST_FRAMES:
        raise ApiError(400, f"An explanation takes up to {_MOST_FRAMES:,} frames of a video.")
    return frames.astype(np.float32)


def _find_caption(index: Index, element: Tensor) -> dict[str, Any] | None:
    """The text of the index that is closest to one element of the image, as a set of its own."""
    if not index.stats().by_side.get("text"):
        return None
    vector = element.float().numpy()[None]
    best = index.search(vectors=vector / (vector**2).sum() ** 0.5, find="text", k=1)
    return {"id": best[0].id, "text": best[0].caption or "", "score": best[0].score} if len(best) else None


def _to_answer(explanation: Explanation, captions: list[dict[str, Any] | None]) -> ExplainAnswer:
    boxes, matrix = explanation.places, explanation.contributions.matrix
    steps, how = explanation.image.weights, str(explanation.image.how)
    if explanation.image_drops is not None and steps.shape[:2] == (1, 1):
        # Of a single vector, what counts for this text says more than what counts for the vector.
        drops = explanation.image_drops.clamp(min=0)
        steps, how = (drops / drops.sum().clamp(min=1e-12))[None, None], "score"
    last = steps[-1]
    words = [word.text for word in explanation.words]
    text_weights = explanation.word_weights[-1]  # (L, words)
    # What an element of the image finds in the text: the words of each text element, by what the pair contributes.
    share = matrix.clamp(min=0)
    image_weights = share / share.sum(1, keepdim=True).clamp(min=1e-12) @ text_weights

    def weigh(weights: Tensor) -> list[dict[str, Any]]:
        return [{"word": word, "weight": weight} for word, weight in zip(words, weights.tolist(), strict=True)]

    elements = [
        {
            "number": number,
            "attention": _locate(boxes, last[number]),
            "iterations": [_locate(boxes, step[number]) for step in steps],
            "nearest_caption": captions[number],
            "words": weigh(image_weights[number]),
        }
        for number in range(len(last))
    ]
    timeline = None
    if (moment := explanation.moment) is not None:
        adds = None if explanation.winning is None else explanation.winning.image_parts.tolist()
        timeline = {"times": list(boxes.times) or None, "scores": list(moment.curve), "adds": adds, "moment": moment}
    return ExplainAnswer.model_validate(
        {
            "score": explanation.score,
            "match": explanation.match,
            "similarity": explanation.similarity,
            "caption": explanation.caption,
            "how": how,
            "maps": list(_locate_scores(explanation)),
            "elements": elements,
            "text": {"elements": [{"number": number, "words": weigh(row)} for number, row in enumerate(text_weights)]},
            "contributions": matrix.tolist(),
            "closeness": explanation.contributions.closeness.tolist(),
            "scale": {"min": float(last.min()), "max": float(last.max())},
            "width": boxes.size[0],
            "height": boxes.size[1],
            "film": timeline,
        }
    )


def _locate_scores(explanation: Explanation) -> Iterator[dict[str, Any]]:
    """What each part of the picture adds to the score of the text, and of each of its phrases."""
    boxes = explanation.places
    found: list[tuple[str | None, float, ScoreMap | None]] = [(None, explanation.score, explanation.score_map)]
    found += [(each.phrase, each.score, each.map) for each in explanation.phrase_maps]
    for phrase, score, each in found:
        if each is not None:
            placed = each.values[boxes.located] if bool(boxes.located.any()) else each.values
            placeless = None if each.remainder is None else score - float(placed.sum())
            values = {"attention": _locate(boxes, each.values), "max": float(placed.max()), "placeless": placeless}
            yield {"phrase": phrase, "score": score, "how": each.how, **values}


def _locate(boxes: TokenBoxes, weights: Tensor) -> dict[str, Any]:
    """One element's weights where they lie, in 0..1 of the picture."""
    width, height = (max(side, 1) for side in boxes.size)
    if boxes.kind == "cells":
        grid = boxes.as_map(weights)
        left, top, right, bottom = boxes.window
        return {
            "kind": "grid",
            "rows": grid.shape[0],
            "cols": grid.shape[1],
            "values": grid.tolist(),
            "window": [left / width, top / height, right / width, bottom / height],
        }
    if boxes.kind == "frames":
        return {"kind": "frames", "values": weights.tolist()}
    there = boxes.located
    if boxes.kind == "boxes" and bool(there.any()):
        corners = boxes.boxes[there] / boxes.boxes.new_tensor([width, height, width, height])
        weighted = zip(corners.tolist(), weights[there].tolist(), strict=True)
        return {"kind": "boxes", "boxes": [[*box, weight] for box, weight in weighted]}
    return {"kind": "none"}
