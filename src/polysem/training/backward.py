"""The loss of a batch and its gradients: in one pass, or in chunks whose gradients equal those of one pass.

Gradient caching (Gao et al., 2021): embed the batch chunk by chunk without a graph; take the loss of all embeddings and
its gradient with respect to them; embed each chunk again, now with a graph, and push its embeddings' gradient through.
Memory holds the graph of one chunk, and the loss still sees every negative of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from polysem import distributed, objectives
from polysem.models import Model, Tower
from polysem.models.tower import Inputs, TokenMask
from polysem.objectives import LabelledBatch, LabelObjective, Loss, Objective
from polysem.objectives.auxiliary import auxiliary_loss
from polysem.recipes import Recipe
from polysem.recipes.schema import AuxiliaryEntry
from polysem.sets import SetPrediction
from polysem.similarity import Similarity
from polysem.training.distillation import kl_divergence
from polysem.training.loading import TrainingBatch
from polysem.training.masked_modelling import MaskedModellingHeads
from polysem.training.monitoring import diagnosis

InputsT = TypeVar("InputsT", bound=Inputs)


TENSORS = ("vectors", "residual", "logits", "global_vector", "states")
"""Of a prediction: what the loss may read."""


def seed_random(seed: int) -> None:
    """Seed torch on the devices there are.

    `torch.manual_seed` queues a call, stack trace and all, for each kind that is absent: a tenth of a small step, and
    memory that grows with every step.
    """
    (torch if torch.accelerator.is_available() else torch.default_generator).manual_seed(seed)


class Criterion(nn.Module):
    """The loss of a recipe: its objective on scores or labels, plus teacher, masked modelling (with `heads`), auxiliary
    losses and regularisers."""

    def __init__(self, recipe: Recipe, heads: MaskedModellingHeads | None = None) -> None:
        super().__init__()
        objective = objectives.build(**recipe.objective)
        if not isinstance(objective, (Objective, LabelObjective)):
            raise TypeError(f"{recipe.objective['name']} is not an objective")  # a checked recipe does not come here
        self.objective: Objective | LabelObjective = objective
        self.heads, self.teacher, self.phrases = heads, recipe.teacher, recipe.phrases
        self.random_seed: int | None = None
        """Of the random draws of the next call; None leaves them to torch's state."""
        self.regularisers = [
            (entry, objectives.build(entry.name, **entry.knobs)) for entry in recipe.regularisers if entry.weight > 0
        ]
        self.auxiliary = [
            (entry, self._build_auxiliary(entry, recipe)) for entry in recipe.auxiliary if entry.weight > 0
        ]
        self.needs_global = any(entry.on == "global" for entry, _ in self.auxiliary)
        """Whether the loss reads global vectors."""
        on_residual = any(entry.on == "residual" for entry, _ in self.regularisers)
        on_residual = on_residual or any(entry.on == "residual" for entry, _ in self.auxiliary)
        self.needs_residual = on_residual or isinstance(objective, LabelObjective)
        """Whether the loss reads residuals and logits."""

    @staticmethod
    def _build_auxiliary(entry: AuxiliaryEntry, recipe: Recipe) -> Objective:
        objective = objectives.build(**(entry.objective or recipe.objective))
        if not isinstance(objective, Objective):
            raise TypeError(f"{entry} takes no scores")  # a checked recipe does not come here
        return objective

    def set_epoch(self, epoch: int) -> None:
        """The epoch (from 0), for objectives with a schedule."""
        for objective in (self.objective, *(auxiliary for _, auxiliary in self.auxiliary)):
            objective.set_epoch(epoch)

    def forward(
        self, images: SetPrediction, texts: SetPrediction, batch: TrainingBatch, similarity: Similarity
    ) -> tuple[Loss, Tensor, float, float]:
        """The loss; and, detached, the scores, the objective alone, and its collapsed value."""
        asked: tuple[SetPrediction, Tensor] | None = None
        if batch.phrases is not None:
            if batch.phrases.any():
                asked = self._select(texts, batch.phrases), batch.positives[:, batch.phrases]
            captions = ~batch.phrases
            texts, batch = self._select(texts, captions), replace(batch, positives=batch.positives[:, captions])
        of_labels = isinstance(self.objective, LabelObjective)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not of_labels):  # to watch, where labels are the loss
            scores = similarity.scores(images.vectors, texts.vectors)
        with torch.random.fork_rng([scores.device] if scores.device.type == "cuda" else []):
            if self.random_seed is not None:
                seed_random(self.random_seed)
            if isinstance(self.objective, LabelObjective):
                if batch.labels is None:
                    raise TypeError("a label objective needs labels")  # training gives them
                image = LabelledBatch(images.vectors, images.residual, images.logits, batch.labels[0])
                text = LabelledBatch(texts.vectors, texts.residual, texts.logits, batch.labels[1])
                loss = self.objective(image, text, batch.positives)
                collapsed = diagnosis.collapsed_label_loss(self.objective, image, text, batch.positives)
            else:
                # Before the objective, so that one which draws its number of negatives draws the same for both.
                collapsed = diagnosis.collapsed_loss(self.objective, scores.detach(), batch.positives)
                loss = self.objective(scores, batch.positives)
            objective, total, parts = float(loss.total.detach()), loss.total, dict(loss.parts)
            if self.teacher is not None and batch.teacher_scores is not None:
                teacher_scores = batch.teacher_scores.to(scores.dtype)
                parts["teacher"] = kl_divergence(scores, teacher_scores, self.teacher.temperature)
                total = (1 - self.teacher.weight) * total + self.teacher.weight * parts["teacher"]
            if self.heads is not None and batch.masked is not None:
                predicted: Loss = self.heads(images.states, texts.states, batch.masked)
                total = total + getattr(self.objective, "masked_weight", 0.0) * predicted.total
                parts |= predicted.parts
            for extra, auxiliary in self.auxiliary:
                parts[extra.on] = auxiliary_loss(extra.on, auxiliary, images, texts, batch.positives, similarity)
                total = total + extra.weight * parts[extra.on]
            if self.phrases is not None and asked is not None:
                parts["phrases"] = self._pair_loss(images, *asked, similarity)
                total = total + self.phrases.weight * parts["phrases"]
            for entry, regulariser in self.regularisers:
                on = "vectors" if entry.on == "vectors" else "residual"
                parts[entry.name] = regulariser(getattr(images, on), getattr(texts, on)).total
                total = total + entry.weight * parts[entry.name]
        return Loss(total, parts, loss.info), scores.detach(), objective, collapsed

    def _pair_loss(
        self, images: SetPrediction, texts: SetPrediction, positives: Tensor, similarity: Similarity
    ) -> Tensor:
        """The objective with its auxiliary losses."""
        total: Tensor = self.objective(similarity.scores(images.vectors, texts.vectors), positives).total
        for entry, auxiliary in self.auxiliary:
            total = total + entry.weight * auxiliary_loss(entry.on, auxiliary, images, texts, positives, similarity)
        return total

    def _select(self, side: SetPrediction, rows: Tensor) -> SetPrediction:
        """Some items of a prediction: what the loss reads of them. A residual that it does not read stays whole, as of
        several processes it is that of this one alone."""
        center = None if side.global_vector is None else side.global_vector[rows]
        residual = side.residual[rows] if self.needs_residual else side.residual
        return SetPrediction(side.vectors[rows], None, residual, global_vector=center)


def run_batch(
    model: Model,
    criterion: Criterion,
    batch: TrainingBatch,
    accelerator: Accelerator,
    chunk: int | None = None,
    scale: float = 1.0,
) -> tuple[Loss, diagnosis.StepFacts]:
    """Forward, loss and backward: gradients are added to the weights' `grad`.

    Args:
        chunk: images embedded at once, with about as many captions in proportion; None for all.
        scale: a factor on the loss.

    Returns:
        The loss, detached, and what the diagnosis reads; the loop fills in what it knows of the step.
    """
    masks = (None, None) if criterion.heads is None else criterion.heads.tower_masks(batch.masked)
    towers: list[_ChunkedTower] = []
    if chunk is None or len(batch.images) <= chunk:
        with accelerator.autocast():
            predictions = model(batch.images, batch.texts, (batch.image_keep, batch.text_keep), masks)
        own = [_reduce(prediction, criterion) for prediction in predictions]
        for side in own:
            if side.vectors.requires_grad:  # a side may have nothing to learn, for an epoch or for good
                side.vectors.retain_grad()
    else:
        captions = max(1, round(chunk * len(batch.texts) / len(batch.images)))
        towers = [
            _ChunkedTower(model.image, batch.images, batch.image_keep, masks[0], chunk, accelerator, criterion),
            _ChunkedTower(model.text, batch.texts, batch.text_keep, masks[1], captions, accelerator, criterion),
        ]
        own = [tower.embed() for tower in towers]
    # The loss is of all processes' embeddings, its gradient with respect to the own ones.
    images, texts = (_gather(side, sizes, criterion) for side, sizes in zip(own, batch.sizes, strict=True))
    with accelerator.autocast():
        loss, scores, objective, collapsed = criterion(images, texts, batch, model.similarity)
    accelerator.backward(loss.total * scale)
    for tower, leaves in zip(towers, own, strict=False):
        tower.backward(leaves)
    facts = diagnosis.StepFacts(objective, collapsed, criterion.objective.collapse, float(scores.std(correction=0)))
    for name, mine, whole in (("image", own[0], images), ("text", own[1], texts)):
        facts.norms[name] = float(mine.residual.detach().norm(dim=-1).mean())
        if whole.vectors.shape[1] > 1:
            facts.variance[name] = diagnosis.circular_variance(whole.vectors)
            if mine.vectors.grad is not None:
                facts.gradient_shares[name] = diagnosis.gradient_shares(mine.vectors.grad)
    detached = Loss(loss.total.detach(), {name: part.detach() for name, part in loss.parts.items()}, loss.info)
    return detached, facts


def average_batches(results: Sequence[Any]) -> Any:
    """The mean over an optimiser step's batches of each number in their `Loss` and `StepFacts`. What only some batches
    report counts where it is; what is no number is the first's."""
    first, several = results[0], len(results) > 1
    if several and isinstance(first, (Loss, diagnosis.StepFacts)):
        return type(first)(**average_batches([vars(result) for result in results]))
    if several and isinstance(first, Mapping):
        names = dict.fromkeys(name for result in results for name in result)
        return {name: average_batches([result[name] for result in results if name in result]) for name in names}
    if several and isinstance(first, tuple):
        return tuple(map(average_batches, zip(*results, strict=True)))
    return sum(results) / len(results) if several and isinstance(first, (int, float, Tensor)) else first


def _gather(side: SetPrediction, sizes: list[int], criterion: Criterion) -> SetPrediction:
    """Of all processes. States stay: each process predicts what is masked of its own tokens."""
    names = ["vectors", *(["residual", "logits"] if criterion.needs_residual else []), "global_vector"]
    names = [name for name in names if getattr(side, name) is not None]
    return replace(side, **{name: distributed.gather(getattr(side, name), sizes) for name in names})


def _reduce(prediction: SetPrediction, criterion: Criterion) -> SetPrediction:
    """Without what the loss does not read."""
    logits = prediction.logits if criterion.needs_residual else None
    states = None if criterion.heads is None else prediction.states
    center = prediction.global_vector if criterion.needs_global else None
    return SetPrediction(prediction.vectors, None, prediction.residual, None, logits, states, center)


class _ChunkedTower:
    """A tower over its inputs in chunks, twice: to embed, and to push the gradient through."""

    def __init__(
        self,
        tower: Tower,
        inputs: Inputs,
        keep: Tensor | None,
        masks: TokenMask | None,
        chunk: int,
        accelerator: Accelerator,
        criterion: Criterion,
    ) -> None:
        self.accelerator, self.criterion = accelerator, criterion
        self.cuts: list[tuple[Tensor, Tensor]] = []
        """Tensors whose graph was cut, each with the leaf that stands for it."""
        norms = (module for module in tower.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm))
        if any(norm.training for norm in norms):
            # Batch norm looks at the whole batch: what comes before it cannot be cut. It is the cheap part.
            # The same features become leaves of a new graph; `backward` connects the two graphs again.
            with accelerator.autocast():
                features = list(tower.encode(inputs, keep, masks))
            for i, name in product(range(2), ("values", "summary")):
                tensor = getattr(features[i], name)
                if tensor is not None and tensor.requires_grad:
                    self.cuts.append((tensor, tensor.detach().requires_grad_()))
                    features[i] = replace(features[i], **{name: self.cuts[-1][1]})
            encoded, projected = features

            def predict(rows: slice) -> SetPrediction:
                return tower.embed(_slice(encoded, rows), _slice(projected, rows))
        else:

            def predict(rows: slice) -> SetPrediction:
                kept, masked = None if keep is None else keep[rows], None if masks is None else masks.rows(rows)
                prediction: SetPrediction = tower(_slice(inputs, rows), kept, masked)
                return prediction

        self.predict: Callable[[slice], SetPrediction] = predict
        self.chunks = [slice(first, first + chunk) for first in range(0, len(inputs), chunk)]
        self.rng = torch.cuda if accelerator.device.type == "cuda" else torch.random
        self.random_states: list[Tensor] = []

    def embed(self) -> SetPrediction:
        """The embeddings as leaves, without a graph behind them."""
        parts = []
        with torch.no_grad(), self.accelerator.autocast():
            for rows in self.chunks:
                self.random_states.append(self.rng.get_rng_state())
                parts.append(_reduce(self.predict(rows), self.criterion))
        leaves = {
            name: torch.cat([getattr(part, name) for part in parts]).requires_grad_()
            for name in TENSORS
            if getattr(parts[0], name) is not None
        }
        return SetPrediction(attention=None, **leaves)

    def backward(self, leaves: SetPrediction) -> None:
        """Push the embeddings' gradient through each chunk, with the random numbers of `embed` (dropout)."""
        gradients = {name: leaf.grad for name in TENSORS if (leaf := getattr(leaves, name)) is not None}
        after = self.rng.get_rng_state()
        for rows, state in zip(self.chunks, self.random_states, strict=True):
            self.rng.set_rng_state(state)
            with self.accelerator.autocast():
                part = _reduce(self.predict(rows), self.criterion)
            _backward_pairs(
                (getattr(part, name), gradient[rows])
                for name, gradient in gradients.items()
                if gradient is not None and getattr(part, name).requires_grad
            )
        self.rng.set_rng_state(after)
        _backward_pairs((tensor, leaf.grad) for tensor, leaf in self.cuts if leaf.grad is not None)


def _backward_pairs(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Push gradients through the graphs of their tensors: (tensor, gradient)."""
    listed = list(pairs)
    if listed:
        torch.autograd.backward([tensor for tensor, _ in listed], [gradient for _, gradient in listed])


def _slice(inputs: InputsT, rows: slice) -> InputsT:
    """Some rows of pixels, tokens or features."""
    if isinstance(inputs, Tensor):
        return inputs[rows]  # type: ignore[return-value]
    tensors = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
    return replace(inputs, **{name: tensor[rows] for name, tensor in tensors.items() if tensor is not None})
