"""The loop: from step to step, every one a function of the weights before it and of its number."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Literal, Protocol

import numpy as np
import torch
from accelerate import Accelerator

from polysem import distributed
from polysem.errors import ConfigError, NonFiniteError, PolysemError
from polysem.models import Model
from polysem.recipes import Recipe
from polysem.training import backward, checkpoints, optimiser, schedule
from polysem.training.backward import Outcome
from polysem.training.checkpoints import Checkpoint, Checkpoints
from polysem.training.criterion import Criterion
from polysem.training.diagnosis import Finding, Monitor, StepFacts, circular_variance, supervision
from polysem.training.guessing import Guessing
from polysem.training.interrupts import Interrupts
from polysem.training.loading import Fed, Feeder
from polysem.training.metrics_log import Records
from polysem.training.validation import merit

SAVE_SECONDS = 120.0
"""A checkpoint at least so often: what a kill can cost."""

OnCollapse = Literal["stop", "warn"]


class StoppedError(PolysemError):
    """The run was ended by a diagnosis. Its last checkpoint is whole."""


class Watcher(Protocol):
    """Who looks on: a progress bar, or nobody."""

    def step(self, record: dict[str, Any]) -> None: ...
    def validation(self, record: dict[str, Any]) -> None: ...
    def finding(self, finding: Finding) -> None: ...


class Loop:
    """Trains a model as its recipe says, from wherever its last checkpoint stands."""

    def __init__(
        self,
        recipe: Recipe,
        model: Model,
        feeder: Feeder,
        validate: Any,
        kept: Checkpoints,
        records: Records,
        accelerator: Accelerator,
        watcher: Watcher,
        on_collapse: OnCollapse = "warn",
        guessing: Guessing | None = None,
    ) -> None:
        self.recipe, self.model, self.feeder, self.validate = recipe, model, feeder, validate
        self.kept, self.records, self.accelerator, self.watcher = kept, records, accelerator, watcher
        self.on_collapse = on_collapse
        self.criterion = Criterion(recipe, guessing)
        self.optimiser = optimiser.build(model, recipe.optimiser, guessing)
        self.stepper = accelerator.prepare_optimizer(self.optimiser, device_placement=False)
        self.trained = [p for group in self.optimiser.param_groups for p in group["params"]]
        self.accumulate = recipe.training.accumulate
        self.steps_per_epoch = len(feeder.batches) // self.accumulate
        if not self.steps_per_epoch:
            raise ConfigError(
                f"training.accumulate={self.accumulate} asks for more batches than the {len(feeder.batches)} of an "
                "epoch. Lower it, or training.batch."
            )
        self.total = self.steps_per_epoch * recipe.training.epochs
        self.monitor = Monitor()
        self.step, self.validated, self.seconds = 0, 0, 0.0
        self.within_step = False
        self.best: dict[str, Any] | None = None
        self.resting = frozenset(
            f"{side}.encoder"
            for side, tower in (("image", model.image), ("text", model.text))
            if tower.encoder.config.get("trainable") == "none"
            and tower.encoder.config.get("dim") is None
            and tower.encoder.takes != "features"
        )

    # -------------------------------------------------------------------------------------------------- going on

    def resume(self) -> bool:
        """Take up the last checkpoint, if there is one."""
        found = self.kept.load("last")
        if found is None:
            self.records.resume(-1)
            return False
        checkpoints.restore(self.model, self.optimiser, found.tensors, self.resting, self.criterion.guessing)
        self.step, self.seconds = int(found.state["step"]), float(found.state["seconds"])
        self.best, self.validated = found.state["best"], int(found.state["validated"])
        if self.accelerator.scaler is not None and found.state.get("scaler"):
            self.accelerator.scaler.load_state_dict(found.state["scaler"])
        self.monitor.restore(found.state["monitor"])
        self.records.resume(self.step)
        return True

    def save(self, kind: str = "last") -> None:
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
        # What a run goes on from; the best one becomes a model, which needs neither.
        memory, beside = (self.optimiser, self.criterion.guessing) if kind == "last" else (None, None)
        self.kept.save(kind, Checkpoint(checkpoints.collect(self.model, memory, self.resting, beside), state))

    # ---------------------------------------------------------------------------------------------------- the run

    def run(self) -> None:
        """Until the last step. Interrupted, it leaves a checkpoint and goes on from there."""
        saved = began = time.monotonic()
        before = self.seconds
        try:
            with Interrupts() as interrupts:
                self.end_epoch()  # of a run that was cut between its last step and its judgement
                while self.step < self.total:
                    epoch = self.step // self.steps_per_epoch
                    self.begin(epoch)
                    for batches in self.fed(epoch):
                        self.take_step(batches, epoch)
                        self.seconds = before + time.monotonic() - began
                        self.end_epoch()
                        if self.due(time.monotonic() - saved):
                            self.save()
                            saved = time.monotonic()
                        interrupts.check()
        except (KeyboardInterrupt, StoppedError):
            if not self.within_step:  # half a step is nothing to go on from: batch norm has moved, weights have not
                self.save()
            raise
        self.save()

    def begin(self, epoch: int) -> None:
        """What is said of an epoch holds from its first step: schedules of the objective, parts that rest."""
        self.criterion.objective.set_epoch(epoch)
        for tower, side in ((self.model.image, self.recipe.image), (self.model.text, self.recipe.text)):
            if side.frozen_epochs:
                wanted = side.encoder.get("trainable", "all")
                tower.encoder.set_trainable("none" if epoch < side.frozen_epochs else wanted)
        self.model.train()  # after the thaw: an encoder that rests refuses training mode

    def fed(self, epoch: int) -> Iterator[list[Fed]]:
        """The batches of each remaining optimiser step of this epoch."""
        done = self.step - epoch * self.steps_per_epoch
        batches = self.feeder.epoch(epoch, start=done * self.accumulate)
        for _ in range(self.steps_per_epoch - done):
            yield [next(batches) for _ in range(self.accumulate)]

    def due(self, since: float) -> bool:
        every = self.recipe.training.checkpoint_every
        return self.step % (every or self.steps_per_epoch) == 0 or since > SAVE_SECONDS

    # --------------------------------------------------------------------------------------------------- one step

    def take_step(self, batches: list[Fed], epoch: int) -> None:
        started, self.within_step = time.monotonic(), True
        self.seed()
        rate = schedule.factor(self.recipe.schedule, self.step, self.steps_per_epoch, self.total)
        for group in self.optimiser.param_groups:
            group["lr"] = group["full_lr"] * rate
        scale = schedule.loss_factor(self.recipe.schedule, self.step, self.steps_per_epoch) / self.accumulate
        for batch in batches:
            outcome = self.learn(batch, scale)
        towers = [*self.model.image.parameters(), *self.model.text.parameters(), *self.criterion.parameters()]
        distributed.reduce_gradients(towers, self.model.similarity.parameters())
        clip = self.recipe.optimiser.clip
        norm = float(self.accelerator.clip_grad_norm_(self.trained, math.inf if clip is None else clip))
        facts = self.facts(outcome, norm)
        # With half precision a scaler tries its luck: it skips a step of infinite gradients by itself.
        sound = math.isfinite(norm) or self.accelerator.scaler is not None
        if not sound or not math.isfinite(float(outcome.loss.total)):
            self.give_up(facts, norm)
        self.stepper.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.step, self.within_step = self.step + 1, False
        items = sum(sum(batch.sizes[1]) for batch in batches)
        self.report(outcome, facts, epoch, norm, items / max(1e-9, time.monotonic() - started))

    def learn(self, batch: Fed, scale: float) -> Outcome:
        try:
            return backward.run(self.model, self.criterion, batch, self.accelerator, self.recipe.training.chunk, scale)
        except NonFiniteError as error:  # from the data, or from weights that ran away
            self.optimiser.zero_grad(set_to_none=True)
            raise StoppedError(
                f"Stopped at step {self.step + 1}: {error} If the data is sound, the weights ran away: lower the "
                "learning rate (--set optimiser.lr=…) or clip (--set optimiser.clip=1), and train into another folder."
            ) from None

    def seed(self) -> None:
        """Dropout's luck is a function of the step: nothing of it needs saving."""
        seed = self.recipe.training.seed
        torch.manual_seed(_luck(seed, self.step, distributed.rank()))
        # An objective that draws has to draw the same in every process: they all compute the same loss.
        self.criterion.luck = _luck(seed, self.step)

    def facts(self, outcome: Outcome, norm: float) -> StepFacts:
        sets = outcome.images.vectors.shape[1] > 1, outcome.texts.vectors.shape[1] > 1
        return StepFacts(
            step=self.step + 1,
            loss=outcome.verdict.objective,
            collapsed_loss=outcome.verdict.collapsed,
            collapse=self.criterion.objective.collapse,
            grad_norm=norm,
            variance_image=circular_variance(outcome.images.vectors) if sets[0] else None,
            variance_text=circular_variance(outcome.texts.vectors) if sets[1] else None,
            supervision_image=_supervision(outcome.image_gradient) if sets[0] else None,
            supervision_text=_supervision(outcome.text_gradient) if sets[1] else None,
            norm_image=outcome.images.length,
            norm_text=outcome.texts.length,
            score_spread=float(outcome.verdict.scores.std(correction=0)),
            lr=max(group["lr"] for group in self.optimiser.param_groups),
            warming=schedule.is_warming(self.recipe.schedule, self.step, self.steps_per_epoch),
        )

    def report(self, outcome: Outcome, facts: StepFacts, epoch: int, norm: float, items_per_second: float) -> None:
        record: dict[str, Any] = {
            "kind": "step",
            "step": self.step,
            "epoch": epoch,
            "loss": float(outcome.loss.total),
            "parts": {name: float(part) for name, part in outcome.loss.parts.items()},
            "lr": {group["name"]: group["lr"] for group in self.optimiser.param_groups},
            "grad_norm": norm,
            "info": dict(outcome.loss.info),
            "items_per_second": items_per_second,
            "seconds": self.seconds,
        }
        variance = {"image": facts.variance_image, "text": facts.variance_text}
        if any(value is not None for value in variance.values()):
            record["variance"] = {name: value for name, value in variance.items() if value is not None}
        self.records.write(record)
        self.accelerator.log(_flat(record), step=self.step)
        self.watcher.step(record)
        if not self.stepper.step_was_skipped:
            self.judge(self.monitor.observe(facts))

    # ------------------------------------------------------------------------------------------------- judgement

    def end_epoch(self) -> None:
        """Validate, if an epoch is at its end that is to be validated and has not been."""
        epoch = self.step // self.steps_per_epoch - 1
        due = (epoch + 1) % self.recipe.training.validate_every == 0 or self.step >= self.total
        if self.step % self.steps_per_epoch or not due or self.validated >= self.step:
            return
        found: dict[str, Any] = {}
        if self.accelerator.is_main_process:
            found = self.validate()
            best = self.best is None or merit(found) > merit(self.best)
            record = {"kind": "validation", "step": self.step, "epoch": epoch, **found, "best": best}
            record["seconds"] = self.seconds
            if best:
                self.best = {"step": self.step, "epoch": epoch, **found}
                self.save("best")
            self.records.write(record)
            self.accelerator.log(_flat(record), step=self.step)
            self.watcher.validation(record)
        self.validated = self.step
        distributed.barrier()

    def note(self, findings: list[Finding]) -> None:
        """Write findings down and show them."""
        for finding in findings:
            self.records.write({"kind": "diagnosis", **asdict(finding)})
            self.watcher.finding(finding)

    def judge(self, findings: list[Finding]) -> None:
        """Report findings, and stop the run where `on_collapse` says so."""
        self.note(findings)
        # Processes look at their own shares; the first one decides for all, or the others would wait for it for ever.
        if self.on_collapse == "stop" and distributed.broadcast(float(bool(findings))):
            if not findings:
                raise StoppedError("Stopped by the first process.")
            first = findings[0]
            raise StoppedError(f"Stopped at step {first.step}: {first.name}. {first.says} {first.advice}")

    def give_up(self, facts: StepFacts, norm: float) -> None:
        """Weights that are not numbers cannot be trained: nothing of this step is kept."""
        self.optimiser.zero_grad(set_to_none=True)
        self.judge(self.monitor.observe(facts))
        raise StoppedError(
            f"Stopped at step {self.step + 1}: the loss is {facts.loss:g} and the gradient's norm {norm:g}. "
            "Lower the learning rate (--set optimiser.lr=…) or clip (--set optimiser.clip=1), and train into another "
            "folder. The last checkpoint is kept."
        )


def _luck(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def _supervision(gradient: torch.Tensor | None) -> tuple[float, ...] | None:
    return None if gradient is None else supervision(gradient)


def _flat(record: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers by slash-separated names, as trackers want them."""
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            found.update(_flat(value, f"{prefix}{name}/"))
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and name not in ("step", "kind"):
            found[f"{prefix}{name}"] = value
    return found
