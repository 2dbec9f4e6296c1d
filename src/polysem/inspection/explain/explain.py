"""The one call: an image, a caption and a model to an `Explanation`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polysem.data import open_collection
from polysem.data.collection import Collection
from polysem.data.images import load_image
from polysem.data.video import is_video, load_still, video_duration
from polysem.encoders.preprocessing import to_rgb
from polysem.errors import InputError, kind
from polysem.inspection.attention import Attention, text_attentions, tower_attentions
from polysem.inspection.explain.drawing import check_theme, draw
from polysem.inspection.explain.explanation import (
    CaptionSource,
    Explanation,
    LabelProbability,
    NearestCaption,
    align_words,
    decompose_score,
    find_score_drops,
    find_winning_dimensions,
)
from polysem.inspection.output import PICTURES, check_output_path
from polysem.inspection.score_map import PhraseMap, map_score, split_phrases
from polysem.inspection.token_boxes import TokenBoxes, locate_regions, locate_tokens
from polysem.models import Model, load
from polysem.models.embedding import embed_batch, embed_probabilities, image_items
from polysem.models.tower import Inputs, Tower
from polysem.models.video import Moment, embed_with_frames, find_moment, format_time, has_frames
from polysem.progress import Progress, ignore

NEAREST, LABELS = 3, 3
"""Captions listed of each element, and labels of each side."""
_BATCH = 512
"""Captions encoded at a time."""


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
    out: str | Path | None = None,
    theme: str = "light",
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
        out, theme: where to draw it, a .png, .svg or .pdf file; light or dark.
        progress: called with the stage "captions" or "drawing", what is done of it and its total.

    Returns:
        The data of the explanation: `.score`, `.contributions`, `.as_dict()`; `draw` makes a figure of it.
    """
    if not isinstance(caption, str) or not caption.strip():
        raise InputError(f"The caption is empty ({caption!r:.40}). Give the sentence whose score is to be explained.")
    check_theme(theme)
    if out is not None:
        check_output_path("an explanation", out, PICTURES)
    report = progress or ignore
    name = str(model) if isinstance(model, (str, Path)) else "model"
    if not isinstance(model, Model):
        model = load(model)
    path = Path(image).expanduser() if isinstance(image, (str, Path)) else None
    shown, features = _read_image(model, image, path, picture)
    batch = image_items(model.image.encoder, [shown if features is None else features]).batch([0])
    (image_attention,) = tower_attentions(model.image, batch, occlude=True)
    (text_attention,) = text_attentions(model, [caption])
    tokens = image_attention.weights.shape[-1]
    shown_name, moment = "image" if path is None else path.name, None
    if has_frames(model.image):
        video = path if path is not None and is_video(path) else None
        duration = duration if video is None else video_duration(video)
        moment = _find_moment(model, batch, text_attention.vectors, duration)
        shown = load_still(video, moment.time) if video is not None and shown is None else shown
        shown_name += "" if moment.time is None else f" at {format_time(moment.time, 1)}"
    places = _locate(model, shown, tokens, boxes, features is not None)
    if moment is not None and moment.start is not None and moment.end is not None and places.kind == "frames":
        # Frames are taken in the middles of equal intervals.
        width = (moment.end - moment.start) / (moment.last + 1 - moment.first)
        places = replace(places, times=tuple((frame + 0.5) * width for frame in range(tokens)))
    nearest: tuple[tuple[NearestCaption, ...], ...] = ()
    searched = None
    if captions is not None:
        source, texts, matching = _open_captions(captions, path, split)
        nearest = _find_nearest_captions(model, image_attention.vectors, texts, matching, report)
        searched = CaptionSource(source, len(texts))
    # What each dimension stands for, if it is the same on both sides.
    names = model.image.sets.dimensions if model.image.sets.dimensions == model.text.sets.dimensions else None
    drops = find_score_drops(model.similarity, image_attention, text_attention)
    explanation = Explanation(
        model=Path(name).name,
        image_name=shown_name,
        caption=caption,
        similarity=str(model.similarity.config["name"]),
        picture=shown,
        image=image_attention,
        places=places,
        text=text_attention,
        words=align_words(model.text.encoder, caption),
        contributions=decompose_score(model.similarity, image_attention.vectors, text_attention.vectors),
        nearest=nearest,
        searched=searched,
        winning=find_winning_dimensions(model.similarity, image_attention, text_attention, names),
        moment=moment,
        labels=_predict_labels(model, batch, caption),
        image_drops=drops[0],
        text_drops=drops[1],
        score_map=map_score(model.similarity, image_attention, text_attention.vectors, places.located),
        phrase_maps=_map_phrases(model, image_attention, caption, places.located),
    )
    if out is not None:
        report("drawing", 0, 1)
        draw(explanation, out, theme)
        report("drawing", 1, 1)
    return explanation


def _map_phrases(model: Model, image: Attention, caption: str, located: Tensor) -> tuple[PhraseMap, ...]:
    """The score map of each phrase of the caption that names a thing."""
    phrases = split_phrases(caption)
    if not phrases or not bool(located.any()):
        return ()
    maps = []
    for phrase, vectors in zip(phrases, model.encode_texts(list(phrases)).float().cpu(), strict=True):
        found = map_score(model.similarity, image, vectors, located)
        if found is not None:
            score = float(model.similarity.scores(image.vectors[None], vectors[None])[0, 0])
            maps.append(PhraseMap(phrase, score, found))
    return tuple(maps)


def _predict_labels(model: Model, batch: Inputs, caption: str) -> dict[str, tuple[LabelProbability, ...]]:
    if not model.labels:
        return {}
    rows = {"image": embed_batch(model.image, batch, embed_probabilities)[0], "text": model.classify_texts([caption])}
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
        return (model.similarity.scores(frames, text[None].to(frames))[:, 0],)

    (scores,) = embed_batch(model.image, video, score_frames)
    return find_moment(scores.double().numpy(), duration)


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
            f"This model takes precomputed features, and {path or 'this'} is an image. Give a .npy file of (tokens, "
            f"{getattr(model.image.encoder, 'input_dim', 'dim')}) features; --picture and --boxes show them on it."
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
    if shown is None or (from_features and not encoder.tiles_image):
        known = encoder.takes == "features" or has_frames(model.image)
        return TokenBoxes.unlocated(tokens, locate_tokens(encoder, (1, 1), tokens).kind if known else "unknown", size)
    return locate_tokens(encoder, shown, tokens)


def _open_captions(
    source: Collection | Sequence[str] | str | Path, image: Path | None, split: str | None
) -> tuple[str, list[str], frozenset[str] | None]:
    """The captions to choose from, each once: their name, they themselves, and which of them are the image's own (None
    if that is not known). Of a collection without a `split`, those of the image's split, or all if it is in none."""
    name, matching = "the given captions", None
    texts: Iterable[str] = ()
    path = Path(source).expanduser() if isinstance(source, (str, Path)) else None
    if path is not None and path.is_file() and path.suffix.lower() == ".txt":
        try:
            name, texts = path.name, path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read as UTF-8 text ({error}). Give one caption per line.") from None
    elif path is not None or isinstance(source, Collection):
        items = source if isinstance(source, Collection) else open_collection(str(path))
        own = None
        if image is not None:
            wanted = image.resolve()
            # Names first: resolving a hundred thousand paths takes seconds.
            same_name = (item for item in items if Path(item.media.name).name == wanted.name)
            own = next((item for item in same_name if item.media.path.resolve() == wanted), None)
        if own is not None:
            split, matching = own.split if split is None else split, frozenset(own.captions)
        name = items.name if split is None else f"{items.name}, {split}"
        texts = (items if split is None else items.split(split)).captions
    else:
        texts = source  # type: ignore[assignment]
    unique = list(dict.fromkeys(text for text in texts if text.strip()))
    if not unique:
        raise InputError(f"{name}: no captions. Give a text file with one per line, or a collection with some.")
    return name, unique, matching


def _find_nearest_captions(
    model: Model, vectors: Tensor, captions: list[str], matching: frozenset[str] | None, progress: Progress
) -> tuple[tuple[NearestCaption, ...], ...]:
    """For each of an image's (K, D) vectors the captions nearest to it, the nearest first.

    An element is as near to a caption as to the nearest of the caption's elements. Captions are encoded in batches and
    not kept.
    """
    similarity = model.similarity
    elements = similarity.prepare(vectors)
    best: Tensor = elements.new_empty(len(elements), 0)
    ids = torch.empty(len(elements), 0, dtype=torch.long)
    for first in range(0, len(captions), _BATCH):
        texts = similarity.prepare(model.encode_texts(captions[first : first + _BATCH]))
        items, size = texts.shape[:2]
        with torch.no_grad():
            close = similarity.closeness(elements, texts.flatten(0, 1).t()).unflatten(1, (items, size)).amax(2)
        best = torch.cat([best, close], dim=1)
        ids = torch.cat([ids, torch.arange(first, first + items).expand(len(elements), -1)], dim=1)
        top = best.topk(min(NEAREST, best.shape[1]), dim=1)
        best, ids = top.values, ids.gather(1, top.indices)
        progress("captions", first + items, len(captions))

    def describe(number: int, closeness: float) -> NearestCaption:
        text = captions[number]
        return NearestCaption(text, closeness, None if matching is None else text in matching)

    return tuple(tuple(map(describe, *row)) for row in zip(ids.tolist(), best.tolist(), strict=True))
