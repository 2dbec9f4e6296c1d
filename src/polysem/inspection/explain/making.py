"""The one call: an image, a caption and a model to an `Explanation`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from polysem.data.collection import Collection
from polysem.data.images import load_image
from polysem.data.video import is_video, load_still, video_duration
from polysem.encoders import Detector
from polysem.encoders.preprocessing import to_rgb
from polysem.errors import InputError, kind
from polysem.inspection.attention import text_attentions, tower_attentions
from polysem.inspection.contributions import contributions
from polysem.inspection.explain.explanation import Explanation, Near, Said, Searched
from polysem.inspection.explain.nearest import captions_of, nearest
from polysem.inspection.explain.winning import winning
from polysem.inspection.token_boxes import Places, nowhere, places, regions
from polysem.inspection.video_timeline import moment
from polysem.inspection.words import words
from polysem.models import Model, load
from polysem.models.embedding import embed_batch, probabilities
from polysem.models.items import image_items
from polysem.models.tower import Inputs
from polysem.models.video import Moment, format_time, has_frames
from polysem.progress import Progress

NEAREST, LABELS = 3, 3


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

    image: a path or a PIL picture; for models of precomputed features the (tokens, dim) array, or a .npy file of it;
    for models of videos a video's path.
    captions: where to look for the caption nearest to each element: a list, a text file with one per line, or a
    collection (of its `split`; without one, of the image's own).
    picture, boxes: to show precomputed features on: the picture, and (tokens, 4) x0, y0, x1, y1 in its pixels.
    duration: of a video that is given as features, in seconds.
    progress: called with the name of a stage, what is done of it and what there is to do.
    """
    if not isinstance(caption, str) or not caption.strip():
        raise InputError(f"The caption is empty ({caption!r:.40}). Give the sentence whose score is to be explained.")
    name = str(model) if isinstance(model, (str, Path)) else "model"
    if not isinstance(model, Model):
        model = load(model)
    path = Path(image).expanduser() if isinstance(image, (str, Path)) else None
    seen, features = _seen(model, image, path, picture)
    given = image_items(model.image.encoder, [seen if features is None else features]).batch([0])
    (looked,) = tower_attentions(model.image, given)
    (read,) = text_attentions(model, [caption])
    tokens = looked.weights.shape[-1]
    part = None
    if has_frames(model.image):
        video = path if path is not None and is_video(path) else None
        part = moment(model, given, read.vectors, duration if video is None else video_duration(video))
        seen = load_still(video, part.time) if video is not None and seen is None else seen
    found: tuple[tuple[Near, ...], ...] = ()
    searched = None
    if captions is not None:
        choice = captions_of(captions, path, split)
        found = nearest(model, looked.vectors, choice, NEAREST, progress)
        searched = Searched(choice.name, len(choice.texts))
    return Explanation(
        model=Path(name).name,
        image_name=_called(path, part),
        caption=caption,
        similarity=str(model.similarity.config["name"]),
        picture=seen,
        image=looked,
        places=_timed(_places(model, seen, tokens, boxes, features is not None), part),
        text=read,
        words=words(model.text.encoder, caption),
        contributions=contributions(model.similarity, looked.vectors, read.vectors),
        nearest=found,
        searched=searched,
        winning=winning(model.similarity, looked, read, _dimensions(model)),
        moment=part,
        labels=_labels(model, given, caption),
    )


def _dimensions(model: Model) -> tuple[str, ...] | None:
    """What each dimension stands for, if it is the same on both sides."""
    names = model.image.sets.dimensions
    return names if names == model.text.sets.dimensions else None


def _labels(model: Model, given: Inputs, caption: str) -> dict[str, tuple[Said, ...]]:
    if not model.labels:
        return {}
    probable = {
        "image": embed_batch(model.image, given, probabilities)[0],
        "text": model.classify_texts([caption]),
    }
    found = {}
    for side, (row,) in probable.items():
        best = row.float().topk(min(LABELS, len(model.labels)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        found[side] = tuple(Said(model.labels[place], value) for place, value in pairs)
    return found


def _called(path: Path | None, part: Moment | None) -> str:
    name = "image" if path is None else path.name
    return name if part is None or part.time is None else f"{name} at {format_time(part.time, 1)}"


def _timed(found: Places, part: Moment | None) -> Places:
    """Frames with the seconds at which they were taken: the middles of equal intervals."""
    if part is None or part.start is None or part.end is None or found.kind != "frames":
        return found
    width = (part.end - part.start) / (part.last + 1 - part.first)
    return replace(found, times=tuple((frame + 0.5) * width for frame in range(len(found))))


def _seen(
    model: Model, image: Any, path: Path | None, picture: Image.Image | str | Path | None
) -> tuple[Image.Image | None, Any]:
    """The picture, if there is one, and the features, or the video, to take in its stead."""
    shown = None if picture is None else open_picture(picture)
    if path is not None and is_video(path) and model.image.encoder.takes == "pixels":
        if not has_frames(model.image):
            raise InputError(f"This model reads pictures, and {path} is a video. Give a picture, or a model of videos.")
        return shown, path
    if path is not None and path.suffix.lower() == ".npy":
        return shown, _array(path)
    if path is None and not isinstance(image, Image.Image):
        return shown, image
    if model.image.encoder.takes == "features":
        raise InputError(
            f"This model takes precomputed features ({type(model.image.encoder).__name__.lower()}), and "
            f"{path or 'the image'} is a picture. Give a .npy file of the picture's (tokens, "
            f"{getattr(model.image.encoder, 'input_dim', 'dim')}) features, made as those it was trained on; "
            "to see them on the picture add --picture (picture=…) and --boxes (boxes=…)."
        )
    return open_picture(image), None


def open_picture(image: Any) -> Image.Image:
    """The image as the encoder will see it: upright RGB."""
    if isinstance(image, Image.Image):
        return to_rgb(image)
    if isinstance(image, (str, Path)):
        return load_image(Path(image).expanduser())
    raise InputError(f"Expected a path or a PIL image, got {kind(image)}.")


def _array(path: Path) -> np.ndarray[Any, Any]:
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a .npy array ({error}).") from None
    if found.ndim != 2:
        raise InputError(
            f"{path} holds an array of shape {found.shape}; expected one image's (tokens, dim) features. "
            "Of a file of many images, save the row you mean: np.save('one.npy', np.load('all.npy')[row])."
        )
    return np.asarray(found, np.float32)


def _places(model: Model, seen: Image.Image | None, tokens: int, boxes: Any, given_features: bool) -> Places:
    size = (0, 0) if seen is None else seen.size
    if boxes is not None:
        array = _array(Path(boxes).expanduser()) if isinstance(boxes, (str, Path)) else boxes
        known = regions(array, size)
        if len(known) != tokens:
            raise InputError(f"There are {len(known)} boxes for {tokens} tokens. Give one for each, in their order.")
        return known
    if seen is None or (given_features and isinstance(model.image.encoder, Detector)):
        frames = _takes_features(model) or has_frames(model.image)
        kind = places(model.image.encoder, (1, 1), tokens).kind if frames else "unknown"
        return nowhere(tokens, kind, size)
    return places(model.image.encoder, seen, tokens)


def _takes_features(model: Model) -> bool:
    return model.image.encoder.takes == "features"
