"""The cost of models: FLOPs, latency, memory and parameters, relative to one vector per item in the same run.

docs/evaluation.md says how each figure is measured: FLOPs and latency as in DivE's supplement B.1, items per second as
VSE+2AD's #OIPs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from polysem import encoders, masked_ops, recipes, similarity
from polysem.encoders import SourceError
from polysem.environment.paths import SHIPPED
from polysem.errors import InputError, UnknownNameError, unknown
from polysem.features import LocalFeatures
from polysem.models import Model, Tower, build, load
from polysem.models.build import global_width
from polysem.models.folder import CONFIG
from polysem.progress import Progress, ignore
from polysem.recipes import Recipe
from polysem.sets.base import registry as set_registry
from polysem.similarity import Similarity

TOP = 10
WAYS = ("image to text", "text to image")
ENCODED_ITEMS = 128
REGIONS = 36
"""Tokens of an item whose encoder leaves it open: as many as bottom-up attention finds."""
FROM_DATA = {"vocab_size": 10_000, "input_dim": 2048}
"""Knobs that training reads from the data, and what is assumed without: about the words of COCO's captions that occur
four times, and the width of bottom-up attention's regions."""
LABELS = 80
"""Classes, where the data would say: COCO's."""

Key = TypeVar("Key", bound=Hashable)
Task = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds. wall: by the clock. cpu: of all threads of this process together."""

    wall: float
    cpu: float

    def __add__(self, other: Timing) -> Timing:
        return Timing(self.wall + other.wall, self.cpu + other.cpu)


@dataclass(frozen=True)
class SetBytes:
    """Of one item's set of vectors."""

    float32: int
    float16: int


@dataclass(frozen=True)
class ParameterCounts:
    """encoder: what reads pixels, tokens or given features. heads: what follows it. A part that both sides share counts
    for each of them, and once in the total."""

    total: int
    trainable: int
    image_encoder: int
    image_heads: int
    text_encoder: int
    text_heads: int


@dataclass(frozen=True)
class RelativeCost:
    """Multiples of the single-vector model's. wall and cpu: of both directions of search; bytes: of an image."""

    flops: float
    wall: float
    cpu: float
    bytes: float
    parameters: float | None


@dataclass(frozen=True)
class Cost:
    """The cost of one model.

    Args:
        set_sizes: Vectors per image and per text.
        flops: Of one pair's score.
        image_to_text, text_to_image: Score and top 10 of all queries.
        items_per_second: Images embedded from their local features; `oips` is the same as a multiple of the slowest
            model's. Both, and the parameters, are None for a single vector that stands for no model.
        is_reference: Whether `relative` of all models refers to this one.
        assumed: What an untrained model took for granted.
    """

    name: str
    similarity: str
    set_sizes: tuple[int, int]
    dim: int
    flops: int
    image_to_text: Timing
    text_to_image: Timing
    image_bytes: SetBytes
    text_bytes: SetBytes
    parameters: ParameterCounts | None
    items_per_second: float | None
    oips: float | None
    relative: RelativeCost
    is_reference: bool
    assumed: Mapping[str, int]


class _Subject(NamedTuple):
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
    """Measure what models cost, on random unit vectors.

    The first model of one vector per item is the reference. Where there is none, a single vector of the first model's
    width is measured too, and comes first.

    Args:
        gallery: How many queries over how many items, in both directions.
        repeats: Rounds, each of which runs every model; times are medians over them.
    """
    if not models:
        raise InputError("cost() got no model. Give at least one: {name: polysem.load(folder)}.")
    if min(*gallery, repeats) < 1:
        raise InputError(
            f"cost() takes at least one query, item and repeat; got {gallery[0]}, {gallery[1]} and {repeats}. "
            "The usual ones are 1000, 5000 and 5."
        )
    subjects = {name: _Subject(m, m.similarity, m.set_sizes, m.dim, m.device) for name, m in models.items()}
    reference = next((name for name, subject in subjects.items() if subject.set_sizes == (1, 1)), None)
    if reference is None:
        first = next(iter(models.values()))
        reference = f"single vector (D={first.dim})"
        single = _Subject(None, similarity.build("cosine"), (1, 1), first.dim, first.device)
        subjects = {reference: single, **subjects}
    with torch.inference_mode():
        times = median_times(_make_tasks(subjects, gallery, seed), repeats, progress or ignore)
    return [_summarise(name, subjects, reference, times) for name in subjects]


def median_times(tasks: Mapping[Key, Task], rounds: int, progress: Progress = ignore) -> dict[Key, Timing]:
    """The median time of each task over rounds, after one round to warm up.

    A round runs every task once: whatever slows the machine for a while slows all of them alike.
    """
    times: dict[Key, list[Timing]] = {key: [] for key in tasks}
    for number in range(rounds + 1):
        for done, (key, task) in enumerate(tasks.items(), 1):
            wall, cpu = time.perf_counter(), time.process_time()
            task()
            if number:
                times[key].append(Timing(time.perf_counter() - wall, time.process_time() - cpu))
            progress("measuring", number * len(tasks) + done, (rounds + 1) * len(tasks))
    return {
        key: Timing(statistics.median(t.wall for t in taken), statistics.median(t.cpu for t in taken))
        for key, taken in times.items()
    }


def _make_tasks(subjects: Mapping[str, _Subject], gallery: tuple[int, int], seed: int) -> dict[tuple[str, str], Task]:
    queries, items = gallery
    tasks: dict[tuple[str, str], Task] = {}

    @cache  # models of one shape share theirs
    def draw_sets(size: int, dim: int, seed: int, device: torch.device) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return masked_ops.normalise(torch.randn(max(gallery), size, dim, generator=generator)).to(device)

    for name, subject in subjects.items():
        dim, device = subject.dim, subject.device
        images, texts = (draw_sets(size, dim, n + 2 * seed, device) for n, size in enumerate(subject.set_sizes))
        scores = subject.similarity.scores
        tasks[name, WAYS[0]] = partial(_search, scores, images[:queries], texts[:items], False)
        tasks[name, WAYS[1]] = partial(_search, scores, images[:items], texts[:queries], True)
        if subject.model is not None:
            features = random_features(subject.model.image, ENCODED_ITEMS, seed)
            tasks[name, "encode"] = partial(subject.model.encode_images, features, batch_size=ENCODED_ITEMS)
    return tasks


def _search(scores: Callable[[Tensor, Tensor], Tensor], images: Tensor, texts: Tensor, by_text: bool) -> Tensor:
    values = scores(images, texts)
    values = values.t().contiguous() if by_text else values
    # On the CPU: an accelerator has not done its work before its answer is here.
    return values.topk(min(TOP, values.shape[1])).indices.cpu()


def random_features(tower: Tower, items: int, seed: int = 0) -> LocalFeatures:
    """Features such as a store would hold: what the encoder makes of pixels, or takes where it takes features."""
    encoder = tower.encoder
    width = encoder.config["input_dim"] if encoder.takes == "features" else encoder.dim
    tokens = encoder.tokens_per_item or REGIONS
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(items, tokens, width, generator=generator)
    takes_summary = tower.sets.needs_global and tower.pool is None
    summary = torch.randn(items, tower.sets.dim, generator=generator) if takes_summary else None
    return LocalFeatures(values, torch.ones(values.shape[:2], dtype=torch.bool), summary)


def _summarise(
    name: str, subjects: Mapping[str, _Subject], reference: str, times: Mapping[tuple[str, str], Timing]
) -> Cost:
    subject, single = subjects[name], subjects[reference]
    flops, single_flops = (each.similarity.flops(*each.set_sizes, each.dim) for each in (subject, single))
    rates = {of: ENCODED_ITEMS / taken.wall for (of, what), taken in times.items() if what == "encode"}
    rate = rates.get(name)
    image_bytes, text_bytes = (SetBytes(4 * size * subject.dim, 2 * size * subject.dim) for size in subject.set_sizes)
    parameters, theirs = _parameters(subject.model), _parameters(single.model)
    image_to_text, text_to_image = (times[name, way] for way in WAYS)
    search, single_search = image_to_text + text_to_image, times[reference, WAYS[0]] + times[reference, WAYS[1]]
    return Cost(
        name=name,
        similarity=subject.similarity.config["name"],
        set_sizes=subject.set_sizes,
        dim=subject.dim,
        flops=flops,
        image_to_text=image_to_text,
        text_to_image=text_to_image,
        image_bytes=image_bytes,
        text_bytes=text_bytes,
        parameters=parameters,
        items_per_second=rate,
        oips=None if rate is None else rate / min(rates.values()),
        relative=RelativeCost(
            flops=flops / single_flops,
            wall=search.wall / single_search.wall,
            cpu=search.cpu / single_search.cpu,
            bytes=image_bytes.float32 / (4 * single.dim),
            parameters=None if parameters is None or theirs is None else parameters.total / theirs.total,
        ),
        is_reference=name == reference,
        assumed={} if subject.model is None else subject.model.provenance.get("assumed", {}),
    )


def _parameters(model: Model | None) -> ParameterCounts | None:
    if model is None:
        return None
    modules = (model, model.image.encoder, model.image, model.text.encoder, model.text)
    total, image, images, text, texts = (sum(p.numel() for p in module.parameters()) for module in modules)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return ParameterCounts(total, trainable, image, images - image, text, texts - text)


def find_model(name: str) -> Model:
    """The model of this name: shipped, in a folder, on the hub; or an untrained one of the recipe of this name."""
    path = Path(name).expanduser()
    is_recipe = name in recipes.names() or path.suffix in (".yaml", ".yml")
    if name in SHIPPED or (path / CONFIG).is_file() or (path.is_dir() and not is_recipe):
        return load(name if name in SHIPPED else path)
    if not is_recipe and name.count("/") == 1 and not name.startswith((".", "~", "/")):
        return load(name)  # on the model hub, or an error that says what was tried
    if not is_recipe:
        choices = unknown("recipe", name, recipes.names())
        raise UnknownNameError(f"{name!r} is not the folder of a model, such as `polysem train` makes. {choices}")
    return build_untrained(recipes.load(name))


def build_untrained(recipe: Recipe) -> Model:
    """The recipe's model with random weights. `provenance["assumed"]` holds what only data could have decided."""
    towers = {"image": recipe.image.tower(), "text": recipe.text.tower()}
    assumed: dict[str, int] = {}
    for side, tower in towers.items():
        encoder = tower["encoder"]
        known = {knob.name for knob in encoders.describe(encoder["name"]).knobs}
        for knob in known & (FROM_DATA.keys() - encoder.keys()):
            encoder[knob] = assumed[f"{side}.encoder.{knob}"] = FROM_DATA[knob]
        if "pretrained" in known:
            encoder["pretrained"] = False
        elif encoder.get("encoder") is not None:  # of a video's frames
            encoder["encoder"]["pretrained"] = False
        sets = tower["sets"]
        if sets != "shared" and set_registry.find(sets["name"]).classifies:
            sets.setdefault("labels", [f"class {number}" for number in range(LABELS)])
            assumed[f"{side}.sets.labels"] = len(sets["labels"])
    try:
        if recipe.dim == "global":
            dim = global_width(towers["image"]["encoder"])
        else:
            dim = assumed["image.sets.labels"] if recipe.dim == "labels" else recipe.dim
        model = build(dim, similarity=recipe.similarity, **towers)
    except SourceError as error:
        raise SourceError(f"The recipe {recipe.name} cannot be built. {error} Or give a model trained by it.") from None
    model.provenance = {"recipe": recipe.model_dump(mode="json"), "assumed": assumed}
    return model.eval()
