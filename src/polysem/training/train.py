"""`train`: a recipe, a collection and a folder in; a model folder out."""

from __future__ import annotations

import platform
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from polysem import distributed
from polysem._version import __version__
from polysem.data import open_collection
from polysem.data.collection import Collection
from polysem.data.train_overlap import build_sketch, merge_sketches
from polysem.environment.precision import reduced_precision
from polysem.errors import ConfigError
from polysem.evaluation import Stamp
from polysem.malloc_tuning import keep_freed_memory
from polysem.progress import rename_stage
from polysem.recipes import Recipe
from polysem.training.build import build_model, learns_labels
from polysem.training.distillation import embed_with_teacher, load_teacher, training_items
from polysem.training.feature_cache import cache_both_sides
from polysem.training.loop import START_EPOCH, NullObserver, OnCollapse, StoppedError, TrainingLoop, TrainingObserver
from polysem.training.monitoring.diagnosis import TrainingFinding
from polysem.training.monitoring.report import write_report
from polysem.training.run_folder import (
    METRICS,
    Checkpoints,
    check_run,
    flatten_numbers,
    lock_folder,
    read_metrics,
    read_run,
    restore_tensors,
    write_run,
)
from polysem.training.splits import find_leaks, split
from polysem.training.start import load_start, start_from
from polysem.training.validation import NDCG_DEPTH

TEACHER = "teacher.safetensors"
"""In a run's folder while it trains: the teacher's embeddings of the training items."""


@dataclass(frozen=True)
class TrainingResult:
    """The outcome of a run.

    Args:
        best: step, epoch and validation figures of the weights in the model folder.
        resumed_from: the step at which this call went on.
        left_out: items of its splits that could not be read, each with the reason.
        start_rsum: of the model that the run started from, on validation.
    """

    run: Path
    status: str
    steps: int
    seconds: float
    best: dict[str, Any] | None
    protocol: str
    resumed_from: int
    left_out: tuple[str, ...] = ()
    start_rsum: float | None = None


def train(
    recipe: Recipe,
    data: str | Path | Collection,
    out: str | Path,
    *,
    features: str | Path | None = None,
    text_features: str | Path | None = None,
    on_collapse: OnCollapse = "warn",
    tracker: str | None = "tensorboard",
    show: TrainingObserver | None = None,
) -> TrainingResult:
    """Train as the recipe says. The same call again resumes a run that was stopped, to the same weights.

    Args:
        recipe: what to train, from `polysem.recipes.load`.
        data: a collection, or its folder.
        out: the run's folder, which becomes a model folder.
        features, text_features: stores of the frozen encoders' features, made if they are not there; by default in the
            user's cache.
        on_collapse: what to do when a diagnosis says that the run collapses or diverges.
        tracker: any tracker of accelerate by name, None for none.
        show: its methods are called for every step.

    Raises:
        StoppedError: the run was ended by a diagnosis.
        InputError: the data does not fit the recipe, or `out` holds something else.
    """
    run, observer = Path(out), show or NullObserver()
    precision, notes = _choose_precision(recipe.training.precision, read_run(run) if run.is_dir() else None)
    if distributed.world_size() == 1:
        # accelerate keeps the precision of the first run of a process for all that follow.
        AcceleratorState._reset_state()
    mixed, cpu = "no" if precision == "fp32" else precision, not torch.accelerator.is_available()
    try:
        accelerator = Accelerator(mixed_precision=mixed, log_with=tracker, project_dir=str(run), cpu=cpu)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"accelerate cannot begin: {error}") from None
    collection = data if isinstance(data, Collection) else open_collection(data)
    splits = split(collection, recipe.data)
    described = {"name": collection.name, **splits.counts()}
    described |= {"digest": splits.digest(learns_labels(recipe)), "items": build_sketch(splits.train)}
    resolved = recipe.model_dump(mode="json")
    earlier = check_run(run, resolved, described)
    if earlier is not None and earlier.get("status") == "finished":
        return _result(run, earlier, resumed_from=earlier["steps"])
    with lock_folder(run) if accelerator.is_main_process else nullcontext():
        start = None if recipe.start is None else load_start(recipe.start, earlier)
        model = build_model(recipe, splits.train, start)
        started, learned_from = dict[str, Any](), list[str]()
        if start is not None and recipe.start is not None:
            notes += start_from(model, start, recipe.start, splits.val)
            started = {"start": {"model": recipe.start, "fingerprint": start.fingerprint()}}
            learned_from = training_items(start)
        model.to(accelerator.device)
        teacher = load_teacher(recipe.teacher, splits.val)
        used = Collection(splits.train.name, splits.train.kind, [*splits.train, *splits.val])
        towers = model.image.encoder, model.text.encoder
        stores = cache_both_sides(used, towers, recipe, (features, text_features), observer.features)
        splits, left_out = splits.keep_readable(stores[0])
        size = len(splits.val), len(splits.val.captions)
        stamp = Stamp("pairs", collection.name, splits.how, *size, selected_on=splits.how)
        if learns_labels(recipe):
            stamp = replace(stamp, protocol="labels", measure=f"hit rate of pairs, NDCG@{NDCG_DEPTH} by shared labels")
        content = {
            "recipe": resolved,
            "data": described | splits.counts(),
            "protocol": str(stamp),
            "selected_on": splits.how,
            "left_out": left_out,
            "status": "running",
            **started,
            "precision": accelerator.mixed_precision,
            "processes": distributed.world_size(),
            "versions": {"polysem": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }
        loop = TrainingLoop(recipe, model, splits, stores, run, accelerator, on_collapse)
        content["steps"] = loop.total
        if accelerator.is_main_process:
            write_run(run, content)
        if teacher is not None and recipe.teacher is not None:
            report = rename_stage(observer.features, "items for the teacher")
            teaches = embed_with_teacher(teacher, recipe.teacher, splits.train, stores, run / TEACHER, report)
            loop.loader.teacher = teaches
        resumed, first_step = loop.resume(), loop.step
        if tracker is not None:
            kwargs = {"tensorboard": {"purge_step": first_step}} if tracker == "tensorboard" else {}
            accelerator.init_trackers("tensorboard" if tracker == "tensorboard" else "polysem", {}, kwargs)
        try:
            title = f"{recipe.name} on {collection.name}"
            with observer.begin(title, loop.total, first_step, loop.best) as loop.observer:
                loop.handle_findings(notes, only_notes=True)
                if not resumed:
                    loop.handle_findings(find_leaks(splits.train, splits.val))
                with keep_freed_memory():
                    loop.run()
            content["status"] = "finished"
        except BaseException as error:
            content["status"] = {StoppedError: "stopped", KeyboardInterrupt: "interrupted"}.get(type(error), "failed")
            content["error"] = str(error)
            raise
        finally:
            content |= {"best": loop.best, "seconds": loop.seconds, "step": loop.step}
            if accelerator.is_main_process:
                if content["status"] == "finished":
                    learned_from += [] if teacher is None else training_items(teacher)
                    _save_model(loop, run, content, learned_from)
                write_run(run, content)
                write_report(run)
        if accelerator.is_main_process:
            (run / TEACHER).unlink(missing_ok=True)
        distributed.barrier()
        accelerator.end_training()
        return _result(run, content, first_step)


def _choose_precision(asked: str, earlier: dict[str, Any] | None) -> tuple[str, list[TrainingFinding]]:
    """The precision to train in, and a note where it is not the one asked for.

    Reduced precision on a processor is used where it works and is faster than float32. A resumed run keeps the
    precision it began with.

    Raises:
        ConfigError: where bfloat16 products would kill the process.
    """
    if asked == "fp32" or torch.accelerator.is_available():
        return asked, []
    why = "torch scales float16 losses on accelerators alone"
    if asked == "bf16":
        probe, began_with = reduced_precision("bf16"), (earlier or {}).get("precision")
        if not probe.works:
            crash = f"a bfloat16 product was {probe.problem}. {probe.remedy}"
            raise ConfigError(f"training.precision=bf16 cannot be used on this processor: {crash}")
        if began_with == "bf16" or (began_with is None and probe.pays):
            return "bf16", []
        why = f"its products run at {probe.speedup:g} times the speed of float32 here"
    says = f"The recipe asks for {asked}, and this processor trains in float32: {why}."
    advice = "Nothing needs to be done; --set training.precision=fp32 asks for it."
    return "fp32", [TrainingFinding("float32 instead", says, advice, 0)]


def _save_model(loop: TrainingLoop, run: Path, content: dict[str, Any], learned_from: list[str]) -> None:
    """Make the best weights the model in the run's folder. learned_from: the sketch of what start and teacher learned
    from."""
    best = Checkpoints(run).load("best")
    if best is not None:
        restore_tensors(loop.model, None, best[0], loop.frozen)
    validated = {name: value for name, value in (loop.best or {}).items() if name in ("step", "rsum", "i2t", "t2i")}
    figures = flatten_numbers(validated, "_")  # by flat names, as a model card lists them
    for name, values in (loop.best or {}).get("labels", {}).items():
        figures |= {f"{side}_{name}": value for side, value in values.items()}
    loop.model.provenance = {
        "recipe": content["recipe"],
        "data": {**content["data"], "items": merge_sketches(content["data"]["items"], learned_from)},
        "validation": {"protocol": content["protocol"], **figures},
        "selected_on": content["selected_on"],
        "versions": content["versions"],
        **({"start": content["start"]} if "start" in content else {}),
    }
    loop.model.cpu().eval().save(run)


def _result(run: Path, content: dict[str, Any], resumed_from: int) -> TrainingResult:
    steps, seconds = int(content.get("step", content["steps"])), float(content.get("seconds", 0.0))
    facts = content["status"], steps, seconds, content.get("best"), content["protocol"]
    validated = (line for line in read_metrics(run / METRICS) if line.get("kind") == "validation")
    start = next((float(line["rsum"]) for line in validated if line.get("epoch") == START_EPOCH), None)
    return TrainingResult(run, *facts, resumed_from, tuple(content.get("left_out", ())), start)
