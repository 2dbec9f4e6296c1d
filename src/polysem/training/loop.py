"""The training loop: from step to step, each a function of the weights before it and of its number."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol, Self

import numpy as np
from accelerate import Accelerator

from polysem import distributed
from polysem.data.batching import Batches
from polysem.errors import ConfigError, InputError, NonFiniteError, PolysemError
from polysem.models import Model
from polysem.objectives import Loss
from polysem.recipes import Recipe
from polysem.training.backward import Criterion, average_batches, run_batch, seed_random
from polysem.training.build import label_matrix, learns_labels
from polysem.training.feature_cache import Stores, is_frozen
from polysem.training.loading import BatchLoader, TrainingBatch, build_sources
from polysem.training.masked_modelling import build_masked_modelling
from polysem.training.monitoring.diagnosis import StepFacts, TrainingFinding, TrainingMonitor
from polysem.training.optimiser import build_optimiser, is_warming, loss_factor, lr_factor
from polysem.training.phrases import find_phrases
from polysem.training.run_folder import Checkpoints, MetricsLog, collect_tensors, flatten_numbers, restore_tensors
from polysem.training.splits import Splits
from polysem.training.validation import selection_score, validate

SAVE_SECONDS = 120.0
"""A checkpoint at least so often: what a kill can cost."""

START_EPOCH = -1
"""The epoch of a validation of the model that a run starts from."""

OnCollapse = Literal["stop", "warn"]

_DIVERGED = (
    "Lower the learning rate (--set optimiser.lr=…) or clip (--set optimiser.clip=1), and train into another folder."
)


class StoppedError(PolysemError):
    """The run was ended by a diagnosis. Its last checkpoint is whole."""


class StepObserver(Protocol):
    """Callbacks while the loop runs; records are lines of metrics.jsonl."""

    def step(self, record: Mapping[str, Any]) -> None: ...
    def validation(self, record: Mapping[str, Any]) -> None: ...
    def finding(self, finding: TrainingFinding) -> None: ...


ShownSteps = AbstractContextManager[StepObserver]


class TrainingObserver(Protocol):
    """Callbacks of a run, to show its progress.

    `features`: features of images or captions are being made. `begin`: the loop begins or resumes at `step` of `total`;
    what the context gives is called for every step.
    """

    def features(self, what: str, done: int, total: int) -> None: ...
    def begin(self, title: str, total: int, step: int, best: dict[str, Any] | None) -> ShownSteps: ...


class NullObserver:
    """An observer that shows nothing."""

    def features(self, what: str, done: int, total: int) -> None: ...
    def step(self, record: Mapping[str, Any]) -> None: ...
    def validation(self, record: Mapping[str, Any]) -> None: ...
    def finding(self, finding: TrainingFinding) -> None: ...
    def begin(self, title: str, total: int, step: int, best: dict[str, Any] | None) -> ShownSteps:
        return nullcontext(self)


class TrainingLoop:
    """Trains a model as its recipe says, from its last checkpoint on.

    Args:
        stores: features of the images and captions, where their encoders are frozen.
        run: the folder of its checkpoints and metrics.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: Model,
        splits: Splits,
        stores: Stores,
        run: Path,
        accelerator: Accelerator,
        on_collapse: OnCollapse = "warn",
    ) -> None:
        learns, val = learns_labels(recipe), splits.val
        if learns and not val.label_names:
            raise InputError(f"The validation items of {val.name} have no labels, and {recipe.name} learns them.")
        labels = label_matrix(splits.train, model.labels or ()) if learns else None
        masker, heads = build_masked_modelling(recipe, model, splits.train, images=stores[0])
        vocabulary, training = getattr(model.text.encoder, "vocabulary", None), recipe.training
        phrases = find_phrases(splits.train, recipe.phrases, vocabulary)
        shown = [phrase.items for phrase in phrases]
        batches = Batches(splits.train, training.batch, training.captions, training.seed, shown)
        sources = build_sources(model, splits.train, stores, recipe, [phrase.text for phrase in phrases])
        self.loader = BatchLoader(model, *sources, batches, labels, masker)
        images, texts = (source.items for source in build_sources(model, val, stores, recipe))
        self.validate = partial(validate, model, images, texts, val.caption_items, val if learns else None)
        self.recipe, self.model = recipe, model
        self.checkpoints, self.log = Checkpoints(run), MetricsLog(run, accelerator.is_main_process)
        self.accelerator, self.on_collapse = accelerator, on_collapse
        self.observer: StepObserver = NullObserver()
        self.criterion = Criterion(recipe, heads)
        self.resting = [model.get_submodule(place) for place in recipe.optimiser.frozen or ()]
        self.optimiser = build_optimiser(model, recipe.optimiser, heads)
        self.stepper = accelerator.prepare_optimizer(self.optimiser, device_placement=False)
        self.parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
        self.accumulate = recipe.training.accumulate
        self.steps_per_epoch = len(batches) // self.accumulate
        if not self.steps_per_epoch:
            more = f"more batches than the {len(batches)} of an epoch"
            raise ConfigError(f"training.accumulate={self.accumulate} asks for {more}. Lower it, or training.batch.")
        self.total = self.steps_per_epoch * recipe.training.epochs
        self.monitor = TrainingMonitor()
        self.step, self.validated, self.seconds = 0, 0, 0.0
        self.within_step = False
        self.best: dict[str, Any] | None = None
        self.frozen = frozenset(
            f"{side}.encoder"
            for side, tower in (("image", model.image), ("text", model.text))
            if is_frozen(tower.encoder)
        )

    def resume(self) -> bool:
        """Restore the last checkpoint, if there is one."""
        checkpoint = self.checkpoints.load("last")
        if checkpoint is None:
            self.log.truncate(-1)
            return False
        tensors, state = checkpoint
        restore_tensors(self.model, self.optimiser, tensors, self.frozen, self.criterion.heads)
        self.step, self.seconds = int(state["step"]), float(state["seconds"])
        self.best, self.validated = state["best"], int(state["validated"])
        if self.accelerator.scaler is not None and state.get("scaler"):
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.monitor.restore(state["monitor"])
        self.log.truncate(self.step)
        return True

    def save(self, kind: str = "last") -> None:
        """Write a checkpoint ("last" or "best")."""
        if not self.accelerator.is_main_process:
            return
        state = {
            "step": self.step,
            "validated": self.validated,
            "seconds": self.seconds,
            "best": self.best,
            "monitor": self.monitor.state(),
            "scaler": self.accelerator.scaler.state_dict() if self.accelerator.scaler is not None else None,
        }
        # The last one is resumed from; the best one becomes a model, which needs neither optimiser nor heads.
        optimiser, heads = (self.optimiser, self.criterion.heads) if kind == "last" else (None, None)
        self.checkpoints.save(kind, collect_tensors(self.model, optimiser, self.frozen, heads), state)

    def run(self) -> None:
        """Train until the last step. Interrupted, it leaves a checkpoint to resume from."""
        saved = began = time.monotonic()
        before, every = self.seconds, self.recipe.training.checkpoint_every or self.steps_per_epoch
        try:
            with DeferredInterrupt() as interrupt:
                if self.recipe.start is not None and self.step == 0 and self.best is None:
                    self.measure(START_EPOCH)  # it competes for the best
                self.validate_epoch()  # of a run that was cut between its last step and its validation
                while self.step < self.total:
                    epoch = self.step // self.steps_per_epoch
                    self.begin_epoch(epoch)
                    done = self.step - epoch * self.steps_per_epoch
                    batches = self.loader.epoch(epoch, start=done * self.accumulate)
                    for _ in range(self.steps_per_epoch - done):
                        self.take_step([next(batches) for _ in range(self.accumulate)], epoch)
                        self.seconds = before + time.monotonic() - began
                        self.validate_epoch()
                        if self.step % every == 0 or time.monotonic() - saved > SAVE_SECONDS:
                            self.save()
                            saved = time.monotonic()
                        interrupt.check()
        except (KeyboardInterrupt, StoppedError):
            if not self.within_step:  # half a step cannot be resumed: batch norm has moved, weights have not
                self.save()
            raise
        self.save()

    def begin_epoch(self, epoch: int) -> None:
        """Set what depends on the epoch: schedules of the objective, encoders that are frozen for some epochs."""
        self.criterion.set_epoch(epoch)
        for tower, side in ((self.model.image, self.recipe.image), (self.model.text, self.recipe.text)):
            if side.frozen_epochs:
                trainable = side.encoder.get("trainable", "all")
                tower.encoder.set_trainable("none" if epoch < side.frozen_epochs else trainable)
        self.model.train()  # last: a frozen encoder refuses training mode
        for part in self.resting:
            part.eval()

    def validate_epoch(self) -> None:
        """Validate, if an epoch is at its end that is to be validated and has not been."""
        epoch = self.step // self.steps_per_epoch - 1
        due = (epoch + 1) % self.recipe.training.validate_every == 0 or self.step >= self.total
        if self.step % self.steps_per_epoch or not due or self.validated >= self.step:
            return
        self.measure(epoch)
        self.validated = self.step

    def measure(self, epoch: int) -> None:
        """Validate, log it, and keep the weights if they are the best so far."""
        if self.accelerator.is_main_process:
            figures = self.validate()
            best = self.best is None or selection_score(figures) > selection_score(self.best)
            measured = {"step": self.step, "epoch": epoch, **figures}
            record = {"kind": "validation", **measured, "best": best, "seconds": self.seconds}
            if best:
                self.best = measured
                self.save("best")
            self._record(record)
            self.observer.validation(record)
        distributed.barrier()

    def take_step(self, batches: list[TrainingBatch], epoch: int) -> None:
        """One optimiser step on the gradients of these batches."""
        started, self.within_step = time.monotonic(), True
        # The random numbers of a step are a function of its number: nothing of them needs saving. An objective that
        # draws has to draw the same in every process: they all compute the same loss.
        seed = self.recipe.training.seed
        seed_random(_mix_seeds(seed, self.step, distributed.rank()))
        self.criterion.random_seed = _mix_seeds(seed, self.step)
        rate = lr_factor(self.recipe.schedule, self.step, self.steps_per_epoch, self.total)
        for group in self.optimiser.param_groups:
            group["lr"] = group["full_lr"] * rate
        scale = loss_factor(self.recipe.schedule, self.step, self.steps_per_epoch) / self.accumulate
        chunk, clip = self.recipe.training.chunk, self.recipe.optimiser.clip
        results = []
        for batch in batches:
            try:
                results.append(run_batch(self.model, self.criterion, batch, self.accelerator, chunk, scale))
            except NonFiniteError as error:  # from the data, or from weights that diverged
                self.optimiser.zero_grad(set_to_none=True)
                raise StoppedError(
                    f"Stopped at step {self.step + 1}: {error} If the data is sound, the weights diverged. {_DIVERGED}"
                ) from None
        towers = [*self.model.image.parameters(), *self.model.text.parameters(), *self.criterion.parameters()]
        distributed.reduce_gradients(towers, self.model.similarity.parameters())
        norm = float(self.accelerator.clip_grad_norm_(self.parameters, math.inf if clip is None else clip))
        lr = max(group["lr"] for group in self.optimiser.param_groups)
        warming = is_warming(self.recipe.schedule, self.step, self.steps_per_epoch)
        loss, facts = average_batches(results)
        facts = replace(facts, step=self.step + 1, grad_norm=norm, lr=lr, warming=warming)
        # With half precision the scaler itself skips a step of infinite gradients.
        sound = math.isfinite(norm) or self.accelerator.scaler is not None
        if not sound or not math.isfinite(float(loss.total)):
            self.optimiser.zero_grad(set_to_none=True)
            self.handle_findings(self.monitor.observe(facts))
            raise StoppedError(
                f"Stopped at step {self.step + 1}: the loss is {facts.loss:g} and the gradient's norm {norm:g}. "
                f"{_DIVERGED} The last checkpoint is kept."
            )
        self.stepper.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.step, self.within_step = self.step + 1, False
        items = sum(sum(batch.sizes[1]) for batch in batches)
        self.record_step(loss, facts, epoch, items / max(1e-9, time.monotonic() - started))

    def record_step(self, loss: Loss, facts: StepFacts, epoch: int, items_per_second: float) -> None:
        """Log a step, show it, and diagnose it."""
        record: dict[str, Any] = {
            "kind": "step",
            "step": self.step,
            "epoch": epoch,
            "loss": float(loss.total),
            "parts": {name: float(part) for name, part in loss.parts.items()},
            "lr": {group["name"]: group["lr"] for group in self.optimiser.param_groups},
            "grad_norm": facts.grad_norm,
            "info": dict(loss.info),
            "items_per_second": items_per_second,
            "seconds": self.seconds,
        }
        if facts.variance:
            record["variance"] = dict(facts.variance)
        self._record(record)
        self.observer.step(record)
        if not self.stepper.step_was_skipped:
            self.handle_findings(self.monitor.observe(facts))

    def handle_findings(self, findings: list[TrainingFinding], only_notes: bool = False) -> None:
        """Log findings and show them; unless they are only notes, stop the run where `on_collapse` says so."""
        for finding in findings:
            self.log.write({"kind": "diagnosis", **asdict(finding)})
            self.observer.finding(finding)
        # Processes look at their own shares; the first one decides for all, or the others would wait for it for ever.
        if not only_notes and self.on_collapse == "stop" and distributed.broadcast(float(bool(findings))):
            if not findings:
                raise StoppedError("Stopped by the first process.")
            first = findings[0]
            raise StoppedError(f"Stopped at step {first.step}: {first.name}. {first.says} {first.advice}")

    def _record(self, record: dict[str, Any]) -> None:
        self.log.write(record)
        numbers = flatten_numbers({name: value for name, value in record.items() if name != "step"}, "/")
        self.accelerator.log(numbers, step=self.step)


class DeferredInterrupt:
    """Within the block, the first Ctrl-C waits for `check`, between two steps; a second one interrupts at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Interrupt now if that was requested."""
        if self.requested:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.check()
        self.requested = True


def _mix_seeds(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
