"""`train`: a recipe, a collection and a folder in; a model folder out."""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from polysem import distributed
from polysem._version import __version__
from polysem.data import open_collection
from polysem.data.batching import Batches
from polysem.data.collection import Collection
from polysem.data.store import FeatureStore
from polysem.data.train_overlap import build_sketch, merge_sketches
from polysem.environment.precision import reduced_precision
from polysem.errors import ConfigError, InputError
from polysem.evaluation import Stamp
from polysem.malloc_tuning import keep_freed_memory
from polysem.models import Model, Tower
from polysem.recipes import Recipe, Side
from polysem.training import checkpoints, folder, loading, precompute
from polysem.training.build import assemble
from polysem.training.checkpoints import Checkpoints
from polysem.training.data import Splits, digest, split, unread, with_features
from polysem.training.diagnosis import Finding
from polysem.training.distillation import learned_from, lessons, teacher_of
from polysem.training.hiding import hiding
from polysem.training.labels import label_flags, learns_labels
from polysem.training.loop import Loop, OnCollapse, StoppedError, Watcher
from polysem.training.metrics_log import Records
from polysem.training.monitoring.report import write_report
from polysem.training.split_leakage import leaks
from polysem.training.validation import CUT, validate

TEACHER = "teacher.safetensors"
"""In a run's folder while it trains: what its teacher makes of the items."""


class Silent:
    """A watcher that shows nothing."""

    def features(self, what: str, done: int, total: int) -> None: ...
    def begin(self, title: str, total: int, step: int, best: dict[str, Any] | None) -> AbstractContextManager[Watcher]:
        return nullcontext(self)

    def step(self, record: dict[str, Any]) -> None: ...
    def validation(self, record: dict[str, Any]) -> None: ...
    def finding(self, finding: Finding) -> None: ...


@dataclass(frozen=True)
class Result:
    """A run as it stands. best: step, epoch and validation figures of the weights in the model folder.
    left_out: items of its splits that could not be read, each with the reason."""

    run: Path
    status: str
    steps: int
    seconds: float
    best: dict[str, Any] | None
    protocol: str
    resumed_from: int
    left_out: tuple[str, ...] = ()


def train(
    recipe: Recipe,
    data: str | Path | Collection,
    out: str | Path,
    *,
    features: str | Path | None = None,
    text_features: str | Path | None = None,
    on_collapse: OnCollapse = "warn",
    tracker: str | None = "tensorboard",
    show: Any = None,
) -> Result:
    """Train as the recipe says. The same call again goes on where an earlier one was stopped, to the same weights.

    features, text_features: stores of the frozen encoders' features, made if they are not there; by default in the
    user's cache. on_collapse: what to do when a diagnosis says that the run is dying. tracker: any tracker of
    accelerate by name, None for none. show: who looks on; `Silent` says what it is asked.
    """
    run, watcher = Path(out), show or Silent()
    precision, notes = _precision(recipe.training.precision, folder.read(run))
    accelerator = _accelerator(precision, run, tracker)
    collection = data if isinstance(data, Collection) else open_collection(data)
    splits = split(collection, recipe.data)
    described = _describe(collection, splits, recipe)
    resolved = recipe.model_dump(mode="json")
    earlier = folder.check(run, resolved, described)
    if earlier is not None and earlier.get("status") == "finished":
        return _result(run, earlier, resumed_from=earlier["steps"])
    with folder.held(run) if accelerator.is_main_process else nullcontext():
        model = assemble(recipe, splits.train)
        model.to(accelerator.device)
        teacher = teacher_of(recipe.teacher, splits.val)
        stores = _stores(model, recipe, splits, (features, text_features), watcher)
        left_out = unread(splits, stores[0])
        splits = Splits(with_features(splits.train, stores[0]), with_features(splits.val, stores[0]), splits.how)
        splits.check(left_out)
        described |= counts(splits)
        content = {
            "recipe": resolved,
            "data": described,
            "protocol": protocol(collection, splits, recipe),
            "selected_on": splits.how,
            "left_out": left_out,
            "status": "running",
            "precision": accelerator.mixed_precision,
            "processes": distributed.world_size(),
            "versions": {"polysem": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }
        loop = _loop(recipe, model, splits, stores, run, accelerator, on_collapse)
        content["steps"] = loop.total
        if accelerator.is_main_process:
            folder.write(run, content)
        if teacher is not None and recipe.teacher is not None:
            progress = partial(_report_teacher, watcher)
            loop.feeder.teaching = lessons(teacher, recipe.teacher, splits.train, stores, run / TEACHER, progress)
        resumed = loop.resume()
        begun = loop.step
        if tracker is not None:
            kwargs = {"tensorboard": {"purge_step": begun}} if tracker == "tensorboard" else {}
            accelerator.init_trackers("tensorboard" if tracker == "tensorboard" else "polysem", {}, kwargs)
        title = f"{recipe.name} on {collection.name}"
        try:
            with watcher.begin(title, loop.total, begun, loop.best) as loop.watcher:
                loop.note(notes)
                if not resumed:
                    loop.judge(leaks(splits.train, splits.val))
                with keep_freed_memory():
                    loop.run()
        except BaseException as end:
            content["status"] = {StoppedError: "stopped", KeyboardInterrupt: "interrupted"}.get(type(end), "failed")
            content["error"] = str(end)
            if accelerator.is_main_process:
                folder.write(run, {**content, "best": loop.best, "seconds": loop.seconds, "step": loop.step})
                write_report(run)
            raise
        finally:
            loop.records.close()
        content |= {"status": "finished", "best": loop.best, "seconds": loop.seconds, "step": loop.step}
        if accelerator.is_main_process:
            _finish(loop, run, content, [] if teacher is None else learned_from(teacher))
        distributed.barrier()
        accelerator.end_training()
        return _result(run, content, begun)


def _precision(
    asked: Literal["fp32", "bf16", "fp16"], earlier: dict[str, Any] | None
) -> tuple[Literal["fp32", "bf16", "fp16"], list[Finding]]:
    """The precision to train in, and a note where it is not the one asked for.

    Reduced precision on a processor is used where it works and is faster than float32. A run that goes on keeps the
    precision it began with.

    Raises:
        ConfigError: where bfloat16 products would kill the process.
    """
    if asked == "fp32" or torch.accelerator.is_available():
        return asked, []
    if asked == "fp16":
        return "fp32", [_float32_instead("fp16", "torch scales float16 losses on accelerators alone")]
    found = reduced_precision("bf16")
    if not found.works:
        raise ConfigError(
            f"training.precision=bf16 cannot be used on this processor: a bfloat16 product was {found.problem}. "
            f"{found.remedy}"
        )
    began_with = (earlier or {}).get("precision")
    if began_with == "bf16" or (began_with is None and found.pays):
        return "bf16", []
    return "fp32", [_float32_instead("bf16", f"its products run at {found.speedup:g} times the speed of float32 here")]


def _float32_instead(asked: str, why: str) -> Finding:
    return Finding(
        "float32 instead",
        f"The recipe asks for {asked}, and this processor trains in float32: {why}.",
        "Nothing needs to be done; --set training.precision=fp32 asks for it.",
        0,
    )


def _accelerator(precision: str, run: Path, tracker: str | None) -> Accelerator:
    if distributed.world_size() == 1:
        # accelerate keeps the precision of the first run of a process for all that follow.
        AcceleratorState._reset_state()
    try:
        return Accelerator(
            mixed_precision="no" if precision == "fp32" else precision,
            log_with=tracker,
            project_dir=str(run),
            cpu=not torch.accelerator.is_available(),
        )
    except (ValueError, ImportError) as error:
        raise ConfigError(f"accelerate cannot begin: {error}") from None


def _stores(
    model: Model,
    recipe: Recipe,
    splits: Splits,
    given: tuple[str | Path | None, str | Path | None],
    watcher: Any,
) -> tuple[FeatureStore | None, FeatureStore | None]:
    """Stores of the encoders that never change: of the training and validation items, and no others."""
    used = Collection(splits.train.name, splits.train.kind, [*splits.train, *splits.val])

    def one(tower: Tower, side: Side, where: str | Path | None, what: str) -> FeatureStore | None:
        if not precompute.is_frozen(tower.encoder, side):
            if where is not None:
                raise ConfigError(
                    f"Features of {what} were given, but the {what[:-1]} encoder of {recipe.name} trains or sees "
                    "augmented inputs: it needs the data itself. Leave the option out."
                )
            return None
        place = None if where is None else Path(where)

        def progress(_: str, done: int, total: int) -> None:
            watcher.features(what, done, total)

        rank, size = distributed.rank(), distributed.world_size()
        store = precompute.features_of(used, tower.encoder, place, progress, rank, size)
        distributed.barrier()
        return store if size == 1 else FeatureStore.open(store.folder)

    images = one(model.image, recipe.image, given[0], "images")
    return images, one(model.text, recipe.text, given[1], "captions")


def _loop(
    recipe: Recipe,
    model: Model,
    splits: Splits,
    stores: tuple[FeatureStore | None, FeatureStore | None],
    run: Path,
    accelerator: Accelerator,
    on_collapse: OnCollapse,
) -> Loop:
    seed = recipe.training.seed

    def sources(part: Collection) -> tuple[loading.Source, loading.Source]:
        return (
            loading.image_source(model.image, part, stores[0], recipe.image, seed),
            loading.text_source(model.text, part, stores[1], recipe.text, seed),
        )

    batches = Batches(splits.train, recipe.training.batch, recipe.training.captions, seed)
    learns = learns_labels(recipe)
    labels = label_flags(splits.train, model.labels or ()) if learns else None
    if learns and not splits.val.label_names:
        raise InputError(f"The validation items of {splits.val.name} have no labels, and {recipe.name} learns them.")
    blanking, guessing = hiding(recipe, model, splits.train, images=stores[0])
    feeder = loading.Feeder(
        model, *sources(splits.train), batches, distributed.rank(), distributed.world_size(), labels, blanking
    )
    val_images, val_texts = sources(splits.val)
    owners = splits.val.caption_items

    def judged() -> dict[str, Any]:
        return validate(model, val_images.items, val_texts.items, owners, splits.val if learns else None)

    records = Records(run, accelerator.is_main_process)
    return Loop(recipe, model, feeder, judged, Checkpoints(run), records, accelerator, Silent(), on_collapse, guessing)


def _report_teacher(watcher: Any, _: str, done: int, total: int) -> None:
    watcher.features("items for the teacher", done, total)


def _finish(loop: Loop, run: Path, content: dict[str, Any], taught_from: list[str]) -> None:
    """The best weights become the model in the run's folder. taught_from: the sketch of the teacher's items."""
    best = Checkpoints(run).load("best")
    if best is not None:
        checkpoints.restore(loop.model, None, best.tensors, loop.resting)
    loop.model.provenance = {
        "recipe": content["recipe"],
        "data": {**content["data"], "items": merge_sketches(content["data"]["items"], taught_from)},
        "validation": {"protocol": content["protocol"], **_figures(loop.best or {})},
        "selected_on": content["selected_on"],
        "versions": content["versions"],
    }
    loop.model.cpu().eval().save(run)
    folder.write(run, content)
    write_report(run)
    (run / TEACHER).unlink(missing_ok=True)


def _figures(best: dict[str, Any]) -> dict[str, float]:
    """Recalls by flat names, as a model card lists them."""
    found = {"step": best.get("step"), "rsum": best.get("rsum")}
    for way in ("i2t", "t2i"):
        found |= {f"{way}_{name}": value for name, value in best.get(way, {}).items()}
    for name, values in best.get("labels", {}).items():
        found |= {f"{side}_{name}": value for side, value in values.items()}
    return {name: value for name, value in found.items() if value is not None}


def protocol(collection: Collection, splits: Splits, recipe: Recipe) -> str:
    """What the validation figures mean."""
    images, texts = len(splits.val), len(splits.val.captions)
    if learns_labels(recipe):
        measure = f"hit rate of pairs, NDCG@{CUT} by shared labels"
        return str(Stamp("labels", collection.name, splits.how, images, texts, measure=measure, selected_on=splits.how))
    return str(Stamp("pairs", collection.name, splits.how, images, texts, selected_on=splits.how))


def _describe(collection: Collection, splits: Splits, recipe: Recipe) -> dict[str, Any]:
    return {
        "name": collection.name,
        **counts(splits),
        "digest": digest(splits, learns_labels(recipe)),
        "items": build_sketch(splits.train),
    }


def counts(splits: Splits) -> dict[str, int]:
    """How much there is to learn from and to validate with."""
    return {
        "train": len(splits.train),
        "train_captions": len(splits.train.captions),
        "val": len(splits.val),
        "val_captions": len(splits.val.captions),
    }


def _result(run: Path, content: dict[str, Any], resumed_from: int) -> Result:
    return Result(
        run,
        content["status"],
        int(content.get("step", content["steps"])),
        float(content.get("seconds", 0.0)),
        content.get("best"),
        content["protocol"],
        resumed_from,
        tuple(content.get("left_out", ())),
    )
