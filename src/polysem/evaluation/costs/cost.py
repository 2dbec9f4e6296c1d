"""What a model costs, beside what one vector per item costs in the same run.

docs/evaluation.md says how each figure is taken: FLOPs and latency as in DivE's supplement B.1, items per second as
VSE+2AD's #OIPs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from polysem import masked_ops, similarity
from polysem.encoders import Detector, Encoder, ImageEncoder, VideoFrames
from polysem.errors import InputError
from polysem.evaluation.costs.timing import Progress, Seconds, medians
from polysem.features import LocalFeatures
from polysem.models import Model, Tower
from polysem.similarity import Similarity

TOP = 10
ENCODED_ITEMS = 128
REGIONS = 36
"""Tokens of an item whose encoder leaves it open: as many as bottom-up attention finds."""


@dataclass(frozen=True)
class Bytes:
    """Of one item's set of vectors."""

    float32: int
    float16: int


@dataclass(frozen=True)
class Parameters:
    """encoder: what reads pixels, tokens or given features. heads: what follows it. A part that both sides share counts
    for each of them, and once in the total."""

    total: int
    trainable: int
    image_encoder: int
    image_heads: int
    text_encoder: int
    text_heads: int


@dataclass(frozen=True)
class Relative:
    """How many times the single-vector model's. wall and cpu: of both ways of search together; bytes: of an image."""

    flops: float
    wall: float
    cpu: float
    bytes: float
    parameters: float | None


@dataclass(frozen=True)
class Cost:
    """What one model costs.

    set_sizes: vectors per image and per text. flops: of one pair's score. image_to_text, text_to_image: score and top
    10 of all queries. items_per_second: images embedded from their local features; oips: the same as a multiple of the
    slowest model's. Both, and the parameters, are None for a single vector that stands for no model.
    is_reference: whether `relative` of all models is about this one. assumed: what an untrained model took for granted.
    """

    name: str
    similarity: str
    set_sizes: tuple[int, int]
    dim: int
    flops: int
    image_to_text: Seconds
    text_to_image: Seconds
    image_bytes: Bytes
    text_bytes: Bytes
    parameters: Parameters | None
    items_per_second: float | None
    oips: float | None
    relative: Relative
    is_reference: bool
    assumed: Mapping[str, int]


@dataclass(frozen=True)
class _Subject:
    """What is measured: a model, or (None) a mere single vector to compare with."""

    model: Model | None
    similarity: Similarity
    set_sizes: tuple[int, int]
    dim: int
    device: torch.device


def cost(
    models: Mapping[str, Model],
    gallery: tuple[int, int] = (1000, 5000),
    repeats: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Cost]:
    """The cost of each model, by name. gallery: so many queries over so many random unit sets, both ways.

    The first model of one vector per item is the reference. Where there is none, a single vector of the first model's
    width is measured too, and comes first. Times are medians over `repeats` rounds, each of which runs every model.
    """
    _check(models, gallery, repeats)
    subjects = {name: _subject(model) for name, model in models.items()}
    reference = next((name for name, subject in subjects.items() if subject.set_sizes == (1, 1)), None)
    if reference is None:
        first = next(iter(subjects.values()))
        reference = f"single vector (D={first.dim})"
        cosine = similarity.build("cosine")
        subjects = {reference: _Subject(None, cosine, (1, 1), first.dim, first.device), **subjects}
    with torch.inference_mode():
        times = medians(_tasks(subjects, gallery, seed), repeats, progress)
    return [_cost(name, subjects, reference, times) for name in subjects]


def _check(models: Mapping[str, Model], gallery: tuple[int, int], repeats: int) -> None:
    if not models:
        raise InputError("cost() got no model. Give at least one: {name: polysem.load(folder)}.")
    if min(gallery) < 1 or repeats < 1:
        queries, items = gallery
        raise InputError(
            f"cost() takes at least one query, item and repeat; got {queries}, {items} and {repeats}. "
            "The usual ones are 1000, 5000 and 5."
        )


def _subject(model: Model) -> _Subject:
    return _Subject(model, model.similarity, model.set_sizes, model.dim, model.device)


# ------------------------------------------------------------------------------------------------------- what is timed


def _tasks(
    subjects: Mapping[str, _Subject], gallery: tuple[int, int], seed: int
) -> dict[tuple[str, str], Callable[[], object]]:
    queries, items = gallery
    unit_sets = cache(_unit_sets)  # models of one shape share theirs
    tasks: dict[tuple[str, str], Callable[[], object]] = {}
    for name, subject in subjects.items():
        most = max(gallery)
        images, texts = (
            unit_sets(most, size, subject.dim, side + 2 * seed, subject.device)
            for side, size in enumerate(subject.set_sizes)
        )
        scores = subject.similarity.scores
        tasks[name, "image to text"] = partial(_image_to_text, scores, images[:queries], texts[:items])
        tasks[name, "text to image"] = partial(_text_to_image, scores, images[:items], texts[:queries])
        if subject.model is not None:
            features = random_features(subject.model.image, ENCODED_ITEMS, seed)
            encode = subject.model.encode_images
            tasks[name, "encode"] = partial(encode, features, batch_size=ENCODED_ITEMS)
    return tasks


def _unit_sets(count: int, size: int, dim: int, seed: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return masked_ops.unit(torch.randn(count, size, dim, generator=generator)).to(device)


def _image_to_text(scores: Callable[[Tensor, Tensor], Tensor], images: Tensor, texts: Tensor) -> Tensor:
    return _top(scores(images, texts))


def _text_to_image(scores: Callable[[Tensor, Tensor], Tensor], images: Tensor, texts: Tensor) -> Tensor:
    return _top(scores(images, texts).t().contiguous())


def _top(scores: Tensor) -> Tensor:
    # On the CPU: an accelerator has not done its work before its answer is here.
    return scores.topk(min(TOP, scores.shape[1])).indices.cpu()


def random_features(tower: Tower, items: int, seed: int = 0) -> LocalFeatures:
    """Features such as a store would hold: what the encoder makes of pixels, or takes where it takes features."""
    encoder = tower.encoder
    width = encoder.config["input_dim"] if encoder.takes == "features" else encoder.dim
    values = torch.randn(items, _tokens(encoder), width, generator=torch.Generator().manual_seed(seed))
    return LocalFeatures(values, torch.ones(values.shape[:2], dtype=torch.bool))


def _tokens(encoder: Encoder) -> int:
    if isinstance(encoder, Detector):
        return encoder.regions
    if isinstance(encoder, VideoFrames):
        return encoder.frames
    return len(encoder.cells()) if isinstance(encoder, ImageEncoder) else REGIONS


# ----------------------------------------------------------------------------------------------------- what is counted


def _cost(
    name: str, subjects: Mapping[str, _Subject], reference: str, times: Mapping[tuple[str, str], Seconds]
) -> Cost:
    subject, single = subjects[name], subjects[reference]
    rates = {of: ENCODED_ITEMS / taken.wall for (of, what), taken in times.items() if what == "encode"}
    rate = rates.get(name)
    image_bytes, text_bytes = (_bytes(size, subject.dim) for size in subject.set_sizes)
    parameters = _parameters(subject.model)
    theirs = _parameters(single.model)
    search, single_search = (times[of, "image to text"] + times[of, "text to image"] for of in (name, reference))
    return Cost(
        name=name,
        similarity=subject.similarity.config["name"],
        set_sizes=subject.set_sizes,
        dim=subject.dim,
        flops=_flops(subject),
        image_to_text=times[name, "image to text"],
        text_to_image=times[name, "text to image"],
        image_bytes=image_bytes,
        text_bytes=text_bytes,
        parameters=parameters,
        items_per_second=rate,
        oips=None if rate is None else rate / min(rates.values()),
        relative=Relative(
            flops=_flops(subject) / _flops(single),
            wall=search.wall / single_search.wall,
            cpu=search.cpu / single_search.cpu,
            bytes=image_bytes.float32 / _bytes(1, single.dim).float32,
            parameters=None if parameters is None or theirs is None else parameters.total / theirs.total,
        ),
        is_reference=name == reference,
        assumed={} if subject.model is None else subject.model.provenance.get("assumed", {}),
    )


def _flops(subject: _Subject) -> int:
    return subject.similarity.flops(*subject.set_sizes, subject.dim)


def _bytes(size: int, dim: int) -> Bytes:
    return Bytes(float32=4 * size * dim, float16=2 * size * dim)


def _parameters(model: Model | None) -> Parameters | None:
    if model is None:
        return None
    image, text = (
        (_count(tower.encoder), _count(tower) - _count(tower.encoder)) for tower in (model.image, model.text)
    )
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return Parameters(_count(model), trainable, *image, *text)


def _count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
