"""The pointing game by query: does the map of a text's score light up the thing that the text names?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from polysem.data.store import FeatureStore
from polysem.encoders import DualImage, ImageEncoder
from polysem.errors import PolysemError
from polysem.inspection.diagnose.error_analysis import NameFinder
from polysem.inspection.diagnose.pointing import (
    Flags,
    HitRate,
    find_tokens_inside,
    iterate_attentions,
    locate_item_tokens,
    measure_rate,
)
from polysem.inspection.gallery import EmbeddedGallery, StorePath
from polysem.inspection.score_map import map_score
from polysem.progress import Progress
from polysem.synthetic.scenes.catalogue import indefinite_phrase

MOST, MOST_OCCLUDED = 300, 60
"""Images at most that take part: of maps that are sums, and of those by omission, a pass for each token."""
_EVEN = 1e-9
"""A map whose values differ by less points nowhere."""


@dataclass(frozen=True)
class QueryRate:
    """How often the peak of the score map lies in a box of what the text names.

    chance: of a random token. habit: of where the peaks of all texts and images lie. above: accuracy - the larger.
    """

    accuracy: HitRate
    chance: float
    habit: float
    above: HitRate


@dataclass(frozen=True)
class QueryPointing:
    """how: of the maps, sum or omission. nouns: of texts that are the name of a thing in the image ("a dog"); None for
    a model that cannot read them. captions: of the image's own captions that name a thing in it.
    elsewhere: of a noun, how often the peak of another thing's noun lies on this thing: what a map that does not follow
    the text would score; None where no image shows two things.
    """

    pictures: int
    how: Literal["sum", "omission"]
    nouns: QueryRate | None
    captions: QueryRate | None
    elsewhere: float | None


@dataclass(frozen=True, eq=False)
class _Trial:
    """A text and an image. peak: the strongest token. target: (tokens,) those on what it names."""

    image: int
    name: str | None
    peak: int
    target: Flags


def play_query_pointing(
    gallery: EmbeddedGallery, features: StorePath = None, progress: Progress | None = None
) -> QueryPointing | str:
    """The result, or in words why there is none."""
    boxed = [i for i, item in enumerate(gallery.items) if item.boxes and item.captions]
    if not boxed:
        return "No boxes are known of these pictures."
    store = None if features is None else FeatureStore.open(features)
    encoder = gallery.model.image.encoder
    if store is None and not isinstance(encoder, ImageEncoder):
        return "Where the model's features lie in the picture is not known."
    if store is None and isinstance(encoder, DualImage) and gallery.model.image.sets.k == 1:
        return "A dual encoder's map takes many passes for each picture; polysem explain makes it for one."
    first = next(iterate_attentions(gallery, boxed[:1], store))
    most = MOST if first.sums is not None else MOST_OCCLUDED
    if len(boxed) > most:
        boxed = [boxed[i * len(boxed) // most] for i in range(most)]
    trials, how = _run_trials(gallery, boxed, store, progress)
    if how is None:
        return "No map of the score can be made, or where its tokens lie is not known."
    nouns, captions = ([t for t in trials if (t.name is not None) == named] for named in (True, False))
    if not trials:
        return "The maps are even, or no caption names any of the things that have a box."
    return QueryPointing(len(boxed), how, _measure(nouns), _measure(captions), _measure_elsewhere(nouns))


def _run_trials(
    gallery: EmbeddedGallery, boxed: list[int], store: FeatureStore | None, progress: Progress | None
) -> tuple[list[_Trial], Literal["sum", "omission"] | None]:
    """All trials, and what the maps are; None without any."""
    items, similarity = gallery.items, gallery.model.similarity
    finder = NameFinder(box.name for item in items for box in item.boxes)
    nouns = _encode_nouns(gallery, boxed)
    starts = np.cumsum([0, *(len(item.captions) for item in items)]).tolist()
    trials: list[_Trial] = []
    how: Literal["sum", "omission"] | None = None
    for done, (number, image) in enumerate(
        zip(boxed, iterate_attentions(gallery, boxed, store, occlude=True), strict=True)
    ):
        item = items[number]
        tokens = locate_item_tokens(gallery, item, store, image.weights.shape[-1])
        located = tokens.located
        if not bool(located.any()):
            return [], None
        names, inside = find_tokens_inside(tokens, item.boxes)
        asked: list[tuple[str | None, Tensor, list[str]]] = [(n, nouns[n], [n]) for n in names if n in nouns]
        for place, caption in enumerate(item.captions):
            vectors = gallery.embeddings.texts[starts[number] + place].float()
            asked.append((None, vectors, sorted(finder.find(caption) & set(names))))
        for name, vectors, named in asked:
            target: Flags = np.asarray(inside[[names.index(each) for each in named]].any(0))
            if not target.any():
                continue  # nothing of it in the picture, or too small for the centre of any token
            found = map_score(similarity, image, vectors, located)
            if found is None:
                return [], None
            how, values = found.how, found.values[located]
            if float(values.max() - values.min()) > _EVEN:
                trials.append(_Trial(number, name, int(values.argmax()), target))
        if progress is not None:
            progress("pointing by query", done + 1, len(boxed))
    return trials, how


def _encode_nouns(gallery: EmbeddedGallery, boxed: list[int]) -> dict[str, Tensor]:
    """The sets of the nouns of these images' things, by name; empty where the model cannot read them."""
    names = sorted({box.name for number in boxed for box in gallery.items[number].boxes})
    try:
        vectors = gallery.model.encode_texts([indefinite_phrase(name) for name in names])
    except PolysemError:  # captions are features, say, and there is no vocabulary
        return {}
    return dict(zip(names, vectors.float(), strict=True))


def _measure(trials: list[_Trial]) -> QueryRate | None:
    if not trials:
        return None
    images = sorted({trial.image for trial in trials})
    rows = [[trial for trial in trials if trial.image == image] for image in images]
    shape = len(rows), max(map(len, rows))
    counted, hits, chance, habit = (np.zeros(shape) for _ in range(4))
    sizes = {len(trial.target) for trial in trials}
    peaks = np.bincount([trial.peak for trial in trials], minlength=max(sizes)) / len(trials)
    for i, row in enumerate(rows):
        for j, trial in enumerate(row):
            counted[i, j], hits[i, j], chance[i, j] = 1, trial.target[trial.peak], trial.target.mean()
            habit[i, j] = (peaks * trial.target).sum() if len(sizes) == 1 else 0.0  # images with the same tokens
    is_trial = counted > 0
    by_chance, by_habit = float(chance[is_trial].mean()), float(habit[is_trial].mean())
    above = hits - (chance if by_chance >= by_habit else habit)
    return QueryRate(measure_rate(hits, is_trial), by_chance, by_habit, measure_rate(above, is_trial))


def _measure_elsewhere(nouns: list[_Trial]) -> float | None:
    by_image: dict[int, list[_Trial]] = {}
    for trial in nouns:
        by_image.setdefault(trial.image, []).append(trial)
    hits = [
        bool(trial.target[other.peak])
        for row in by_image.values()
        for trial in row
        for other in row
        if other is not trial
    ]
    return float(np.mean(hits)) if hits else None
