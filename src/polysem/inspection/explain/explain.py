"""The one call: an image, a caption and a model to an `Explanation`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from polysem.data.collection import Collection
from polysem.data.images import load_image
from polysem.data.video import is_video, load_still, video_duration
from polysem.encoders import Detector
from polysem.encoders.preprocessing import to_rgb
from polysem.errors import InputError, kind
from polysem.inspection.attention import text_attentions, tower_attentions
from polysem.inspection.explain.contributions import decompose_score, find_winning_dimensions
from polysem.inspection.explain.explanation import CaptionSource, Explanation, LabelProbability, align_words
from polysem.inspection.explain.nearest_captions import find_nearest_captions, open_captions
from polysem.inspection.token_boxes import TokenBoxes, locate_regions, locate_tokens
from polysem.models import Model, load
from polysem.models.embedding import embed_batch, probabilities
from polysem.models.items import image_items
from polysem.models.tower import Inputs, Tower
from polysem.models.video import Moment, embed_with_frames, find_moment, format_time, has_frames
from polysem.progress import Progress

NEAREST, LABELS = 3, 3
"""Captions listed of each element, and labels of each side."""


def explain(
    model: Model | str | Path,
    image: Any,
    caption: str,
    captions: Collection | Sequence[str] | str | Path | None = None,
    *,
    split: str | None = None,
    picture: Image.Image | str | Path | None = None,
    boxes: Any = None,
    duration: float | None = None,
    progress: Progress | None = None,
) -> Explanation:
    """Why this image and this caption have the score that the model gives them.

    Args:
        model: a model or its folder.
        image: a path or a PIL image; for models of precomputed features the (tokens, dim) array, or a .npy file of it;
            for models of videos a video's path.
        captions: where to look for the caption nearest to each element: a list, a text file with one per line, or a
            collection (of its `split`; without one, of the image's own).
        picture, boxes: to show precomputed features on: the image, and (tokens, 4) x0, y0, x1, y1 in its pixels.
        duration: of a video that is given as features, in seconds.
        progress: called with the stage "captions", the captions done and their total.

    Returns:
        The data of the explanation: `.score`, `.contributions`, `.as_dict()`; `draw` makes a figure of it.
    """
    if not isinstance(caption, str) or not caption.strip():
        raise InputError(f"The caption is empty ({caption!r:.40}). Give the sentence whose score is to be explained.")
    name = str(model) if isinstance(model, (str, Path)) else "model"
    if not isinstance(model, Model):
        model = load(model)
    path = Path(image).expanduser() if isinstance(image, (str, Path)) else None
    shown, features = _read_image(model, image, path, picture)
    batch = image_items(model.image.encoder, [shown if features is None else features]).batch([0])
    (image_attention,) = tower_attentions(model.image, batch)
    (text_attention,) = text_attentions(model, [caption])
    moment = None
    if has_frames(model.image):
        video = path if path is not None and is_video(path) else None
        duration = duration if video is None else video_duration(video)
        moment = _find_moment(model, batch, text_attention.vectors, duration)
        shown = load_still(video, moment.time) if video is not None and shown is None else shown
    pool = None if captions is None else open_captions(captions, path, split)
    tokens = _locate(model, shown, image_attention.weights.shape[-1], boxes, features is not None)
    # What each dimension stands for, if it is the same on both sides.
    names = model.image.sets.dimensions if model.image.sets.dimensions == model.text.sets.dimensions else None
    return Explanation(
        model=Path(name).name,
        image_name=_name_image(path, moment),
        caption=caption,
        similarity=str(model.similarity.config["name"]),
        picture=shown,
        image=image_attention,
        places=_add_frame_times(tokens, moment),
        text=text_attention,
        words=align_words(model.text.encoder, caption),
        contributions=decompose_score(model.similarity, image_attention.vectors, text_attention.vectors),
        nearest=() if pool is None else find_nearest_captions(model, image_attention.vectors, pool, NEAREST, progress),
        searched=None if pool is None else CaptionSource(pool.name, len(pool.texts)),
        winning=find_winning_dimensions(model.similarity, image_attention, text_attention, names),
        moment=moment,
        labels=_predict_labels(model, batch, caption),
    )


def _predict_labels(model: Model, batch: Inputs, caption: str) -> dict[str, tuple[LabelProbability, ...]]:
    if not model.labels:
        return {}
    rows = {
        "image": embed_batch(model.image, batch, probabilities)[0],
        "text": model.classify_texts([caption]),
    }
    result = {}
    for side, (row,) in rows.items():
        best = row.float().topk(min(LABELS, len(model.labels)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        result[side] = tuple(LabelProbability(model.labels[label], value) for label, value in pairs)
    return result


def _find_moment(model: Model, video: Inputs, text: Tensor, duration: float | None) -> Moment:
    """The part of one video that matches a text's set (L, D) best.

    The same frames and scores that a search of an index compares, all of them and unrounded.
    """

    def score_frames(tower: Tower, batch: Inputs) -> tuple[Tensor, ...]:
        _, (frames,) = embed_with_frames(tower, batch, most=2**31)
        return (model.similarity.scores(text[None].to(frames), frames)[0],)

    (scores,) = embed_batch(model.image, video, score_frames)
    return find_moment(scores.double().numpy(), duration)


def _name_image(path: Path | None, moment: Moment | None) -> str:
    name = "image" if path is None else path.name
    return name if moment is None or moment.time is None else f"{name} at {format_time(moment.time, 1)}"


def _add_frame_times(tokens: TokenBoxes, moment: Moment | None) -> TokenBoxes:
    """Frames with the seconds at which they were taken: the middles of equal intervals."""
    if moment is None or moment.start is None or moment.end is None or tokens.kind != "frames":
        return tokens
    width = (moment.end - moment.start) / (moment.last + 1 - moment.first)
    return replace(tokens, times=tuple((frame + 0.5) * width for frame in range(len(tokens))))


def _read_image(
    model: Model, image: Any, path: Path | None, picture: Image.Image | str | Path | None
) -> tuple[Image.Image | None, Any]:
    """The image to show, if there is one, and the features, or the video's path, to take in its stead."""
    shown = None if picture is None else _open_picture(picture)
    if path is not None and is_video(path) and model.image.encoder.takes == "pixels":
        if not has_frames(model.image):
            raise InputError(f"This model reads images, and {path} is a video. Give an image, or a model of videos.")
        return shown, path
    if path is not None and path.suffix.lower() == ".npy":
        return shown, _load_array(path)
    if path is None and not isinstance(image, Image.Image):
        return shown, image
    if model.image.encoder.takes == "features":
        raise InputError(
            f"This model takes precomputed features ({type(model.image.encoder).__name__.lower()}), and "
            f"{path or 'the image'} is an image. Give a .npy file of the image's (tokens, "
            f"{getattr(model.image.encoder, 'input_dim', 'dim')}) features, made as those it was trained on; "
            "to see them on the image add --picture (picture=…) and --boxes (boxes=…)."
        )
    return _open_picture(image), None


def _open_picture(image: Any) -> Image.Image:
    """The image as the encoder will see it: upright RGB."""
    if isinstance(image, Image.Image):
        return to_rgb(image)
    if isinstance(image, (str, Path)):
        return load_image(Path(image).expanduser())
    raise InputError(f"Expected a path or a PIL image, got {kind(image)}.")


def _load_array(path: Path) -> np.ndarray[Any, Any]:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a .npy array ({error}).") from None
    if array.ndim != 2:
        raise InputError(
            f"{path} holds an array of shape {array.shape}; expected one image's (tokens, dim) features. "
            "Of a file of many images, save one row: np.save('one.npy', np.load('all.npy')[row])."
        )
    return np.asarray(array, np.float32)


def _locate(model: Model, shown: Image.Image | None, tokens: int, boxes: Any, from_features: bool) -> TokenBoxes:
    encoder, size = model.image.encoder, (0, 0) if shown is None else shown.size
    if boxes is not None:
        array = _load_array(Path(boxes).expanduser()) if isinstance(boxes, (str, Path)) else boxes
        regions = locate_regions(array, size)
        if len(regions) != tokens:
            raise InputError(f"There are {len(regions)} boxes for {tokens} tokens. Give one for each, in their order.")
        return regions
    if shown is None or (from_features and isinstance(encoder, Detector)):
        known = encoder.takes == "features" or has_frames(model.image)
        return TokenBoxes.unlocated(tokens, locate_tokens(encoder, (1, 1), tokens).kind if known else "unknown", size)
    return locate_tokens(encoder, shown, tokens)
