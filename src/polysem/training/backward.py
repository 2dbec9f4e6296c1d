"""The loss of a batch and its gradients: in one pass, or in chunks whose gradients equal those of one pass.

Gradient caching (Gao et al., 2021): embed the batch chunk by chunk without a graph; take the loss of all embeddings and
its gradient with respect to them; embed each chunk again, now with a graph, and push its embeddings' gradient through.
Memory holds the graph of one chunk, and the loss still sees every negative of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from polysem import distributed, objectives
from polysem.encoders import Tokens
from polysem.features import LocalFeatures
from polysem.models import Model, Tower
from polysem.models.tower import Hidden, Inputs
from polysem.objectives import LabelledBatch, LabelObjective, Loss, Objective, Regulariser
from polysem.recipes import Recipe
from polysem.sets import SetPrediction
from polysem.similarity import Similarity
from polysem.training.distillation import kl_divergence
from polysem.training.loading import TrainingBatch
from polysem.training.masked_modelling import MaskedModellingHeads
from polysem.training.monitoring.diagnosis import collapsed_label_loss, collapsed_loss


@dataclass(frozen=True, eq=False)
class SideEmbeddings:
    """What the loss reads of the images or of the texts.

    Args:
        vectors: (B, K, D), unit vectors.
        residual: (B, K, D), what they were before normalisation, where a regulariser or a label objective wants it.
        residual_norm: its mean length, to watch.
        logits: (B, C), of each class.
        states: (B, N, D), of the tokens of this process, where masked ones are predicted.
    """

    vectors: Tensor
    residual: Tensor | None = None
    residual_norm: float = 0.0
    logits: Tensor | None = None
    states: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """Those that are there."""
        every = (self.vectors, self.residual, self.logits, self.states)
        return [tensor for tensor in every if tensor is not None]


@dataclass(frozen=True, eq=False)
class BatchResult:
    """The loss of a batch and what the diagnosis reads; tensors are detached.

    Args:
        scores: (I, T). objective: the objective's own total, without teacher, heads and regularisers.
        collapsed: what it would be if all scores were equal; of a label objective, if all items were alike.
        image_gradient, text_gradient: of the loss with respect to the vectors.
    """

    loss: Loss
    scores: Tensor
    objective: float
    collapsed: float
    images: SideEmbeddings
    texts: SideEmbeddings
    image_gradient: Tensor | None
    text_gradient: Tensor | None


# --------------------------------------------------------------------------------------------------------- criterion


class Criterion(nn.Module):
    """The loss of a recipe: its objective on scores or labels, plus teacher, masked modelling and regularisers.

    Args:
        heads: predict masked tokens, where the objective gives that a weight.
    """

    def __init__(self, recipe: Recipe, heads: MaskedModellingHeads | None = None) -> None:
        super().__init__()
        objective = objectives.build(**recipe.objective)
        if not isinstance(objective, (Objective, LabelObjective)):
            raise TypeError(f"{recipe.objective['name']} is no objective")  # a checked recipe does not come here
        self.objective: Objective | LabelObjective = objective
        self.heads, self.teacher = heads, recipe.teacher
        self.random_seed: int | None = None
        """Of the random draws of the next call; None leaves them to torch's state."""
        self.regularisers = [
            (entry, objectives.build(entry.name, **entry.knobs)) for entry in recipe.regularisers if entry.weight > 0
        ]

    @property
    def needs_residual(self) -> bool:
        """Whether the loss reads residuals and logits."""
        of_labels = isinstance(self.objective, LabelObjective)
        return of_labels or any(entry.on == "residual" for entry, _ in self.regularisers)

    def forward(
        self, images: SideEmbeddings, texts: SideEmbeddings, batch: TrainingBatch, similarity: Similarity
    ) -> tuple[Loss, Tensor, float, float]:
        """The loss; and, detached, the scores, the objective alone, and its collapsed value."""
        of_labels = isinstance(self.objective, LabelObjective)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not of_labels):  # to watch, where labels are the loss
            scores = similarity.scores(images.vectors, texts.vectors)
        with torch.random.fork_rng([scores.device] if scores.device.type == "cuda" else []):
            if self.random_seed is not None:
                torch.manual_seed(self.random_seed)
            loss, collapsed = self._objective(images, texts, batch, scores)
            objective, total, parts = float(loss.total.detach()), loss.total, dict(loss.parts)
            if self.teacher is not None and batch.teacher_scores is not None:
                teacher_scores = batch.teacher_scores.to(scores.dtype)
                parts["teacher"] = kl_divergence(scores, teacher_scores, self.teacher.temperature)
                total = (1 - self.teacher.weight) * total + self.teacher.weight * parts["teacher"]
            if self.heads is not None and batch.masked is not None:
                predicted: Loss = self.heads(images.states, texts.states, batch.masked)
                total = total + getattr(self.objective, "hidden_weight", 0.0) * predicted.total
                parts |= predicted.parts
            for entry, regulariser in self.regularisers:
                extra = _regularise(regulariser, images, texts, entry.on)
                total = total + entry.weight * extra.total
                parts[entry.name] = extra.total
        return Loss(total, parts, loss.info), scores.detach(), objective, collapsed

    def _objective(
        self, images: SideEmbeddings, texts: SideEmbeddings, batch: TrainingBatch, scores: Tensor
    ) -> tuple[Loss, float]:
        """The objective, and what it would be for a collapsed model."""
        if isinstance(self.objective, LabelObjective):
            if batch.labels is None:
                raise TypeError("a label objective needs labels")  # training gives them
            image, text = (
                LabelledBatch(
                    side.vectors, side.vectors if side.residual is None else side.residual, side.logits, labels
                )
                for side, labels in zip((images, texts), batch.labels, strict=True)
            )
            loss = self.objective(image, text, batch.positives)
            return loss, collapsed_label_loss(self.objective, image, text, batch.positives)
        # Before the objective, so that one which draws its number of negatives draws the same for both.
        collapsed = collapsed_loss(self.objective, scores.detach(), batch.positives)
        return self.objective(scores, batch.positives), collapsed


def _regularise(part: nn.Module, images: SideEmbeddings, texts: SideEmbeddings, on: str) -> Loss:
    if not isinstance(part, Regulariser):
        raise TypeError(f"{type(part).__name__} is no regulariser")
    if on == "vectors":
        return part(images.vectors, texts.vectors)  # type: ignore[no-any-return]
    return part(images.residual, texts.residual)  # type: ignore[no-any-return]


# -------------------------------------------------------------------------------------------------- forward, backward


def run_batch(
    model: Model,
    criterion: Criterion,
    batch: TrainingBatch,
    accelerator: Accelerator,
    chunk: int | None = None,
    scale: float = 1.0,
) -> BatchResult:
    """Forward, loss and backward: gradients are added to the weights' `grad`.

    Args:
        chunk: images embedded at once, with about as many captions in proportion; None for all.
        scale: a factor on the loss.
    """
    masks = (None, None) if criterion.heads is None else criterion.heads.tower_masks(batch.masked)
    if chunk is None or len(batch.images) <= chunk:
        with accelerator.autocast():
            predictions = model(batch.images, batch.texts, (batch.image_keep, batch.text_keep), masks)
        images, texts = (_side(prediction, criterion) for prediction in predictions)
        for side in (images, texts):
            if side.vectors.requires_grad:  # a side may have nothing to learn, for an epoch or for good
                side.vectors.retain_grad()
        return _backward_loss(model, criterion, batch, accelerator, (images, texts), scale)
    captions = max(1, round(chunk * len(batch.texts) / len(batch.images)))
    towers = [
        _ChunkedTower(model.image, batch.images, batch.image_keep, masks[0], chunk, accelerator, criterion),
        _ChunkedTower(model.text, batch.texts, batch.text_keep, masks[1], captions, accelerator, criterion),
    ]
    leaves = towers[0].embed(), towers[1].embed()
    result = _backward_loss(model, criterion, batch, accelerator, leaves, scale)
    for tower, leaf in zip(towers, leaves, strict=True):
        tower.backward(leaf)
    return result


def _backward_loss(
    model: Model,
    criterion: Criterion,
    batch: TrainingBatch,
    accelerator: Accelerator,
    own: tuple[SideEmbeddings, SideEmbeddings],
    scale: float,
) -> BatchResult:
    """The loss of all processes' embeddings, and its gradient with respect to the own ones."""
    images, texts = (_gather(side, sizes) for side, sizes in zip(own, batch.sizes, strict=True))
    with accelerator.autocast():
        loss, scores, objective, collapsed = criterion(images, texts, batch, model.similarity)
    accelerator.backward(loss.total * scale)
    detached = Loss(loss.total.detach(), {name: part.detach() for name, part in loss.parts.items()}, loss.info)
    image, text = (SideEmbeddings(side.vectors.detach(), residual_norm=side.residual_norm) for side in (images, texts))
    return BatchResult(detached, scores, objective, collapsed, image, text, own[0].vectors.grad, own[1].vectors.grad)


def _gather(side: SideEmbeddings, sizes: list[int]) -> SideEmbeddings:
    """Of all processes. States stay: each process predicts what is masked of its own tokens."""
    residual, logits = (None if own is None else distributed.gather(own, sizes) for own in (side.residual, side.logits))
    vectors = distributed.gather(side.vectors, sizes)
    return SideEmbeddings(vectors, residual, side.residual_norm, logits, side.states)


def _side(prediction: SetPrediction, criterion: Criterion) -> SideEmbeddings:
    residual, logits = (prediction.residual, prediction.logits) if criterion.needs_residual else (None, None)
    norm = float(prediction.residual.detach().norm(dim=-1).mean())
    states = None if criterion.heads is None else prediction.states
    return SideEmbeddings(prediction.vectors, residual, norm, logits, states)


class _ChunkedTower:
    """A tower over its inputs in chunks, twice: to embed, and to push the gradient through."""

    def __init__(
        self,
        tower: Tower,
        inputs: Inputs,
        keep: Tensor | None,
        masks: Hidden | None,
        chunk: int,
        accelerator: Accelerator,
        criterion: Criterion,
    ) -> None:
        self.accelerator, self.criterion = accelerator, criterion
        self.cuts: list[tuple[Tensor, Tensor]] = []
        """Tensors whose graph was cut, each with the leaf that stands for it."""
        if _has_batch_statistics(tower):
            # Batch norm looks at the whole batch: what comes before it cannot be cut. It is the cheap part.
            with accelerator.autocast():
                encoded, projected = (self._cut_graph(features) for features in tower.encode(inputs, keep, masks))

            def predict(rows: slice) -> SetPrediction:
                return tower.embed(_slice_features(encoded, rows), _slice_features(projected, rows))
        else:

            def predict(rows: slice) -> SetPrediction:
                prediction: SetPrediction = tower(
                    _slice_inputs(inputs, rows),
                    None if keep is None else keep[rows],
                    None if masks is None else masks.rows(rows),
                )
                return prediction

        self.predict: Callable[[slice], SetPrediction] = predict
        self.chunks = [slice(first, first + chunk) for first in range(0, len(inputs), chunk)]
        self.random_states: list[Tensor] = []

    def _cut_graph(self, features: LocalFeatures) -> LocalFeatures:
        """The same features as leaves of a new graph; `backward` connects the two graphs again."""

        def cut(tensor: Tensor) -> Tensor:
            if not tensor.requires_grad:
                return tensor
            leaf = tensor.detach().requires_grad_()
            self.cuts.append((tensor, leaf))
            return leaf

        summary = None if features.summary is None else cut(features.summary)
        return LocalFeatures(cut(features.values), features.mask, summary)

    def embed(self) -> SideEmbeddings:
        """The embeddings as leaves, without a graph behind them."""
        parts = []
        with torch.no_grad(), self.accelerator.autocast():
            for rows in self.chunks:
                self.random_states.append(_random_state(self.accelerator.device))
                parts.append(_side(self.predict(rows), self.criterion))

        def join(name: str) -> Tensor | None:
            tensors = [tensor for part in parts if (tensor := getattr(part, name)) is not None]
            return torch.cat(tensors).requires_grad_() if tensors else None

        vectors = torch.cat([part.vectors for part in parts]).requires_grad_()
        norm = sum(part.residual_norm for part in parts) / len(parts)
        return SideEmbeddings(vectors, join("residual"), norm, join("logits"), join("states"))

    def backward(self, whole: SideEmbeddings) -> None:
        """Push the embeddings' gradient through each chunk, with the random numbers of `embed` (dropout)."""
        after = _random_state(self.accelerator.device)
        for rows, state in zip(self.chunks, self.random_states, strict=True):
            _set_random_state(state, self.accelerator.device)
            with self.accelerator.autocast():
                part = _side(self.predict(rows), self.criterion)
            _backward_pairs(
                (tensor, leaf.grad[rows])
                for tensor, leaf in zip(part.tensors(), whole.tensors(), strict=True)
                if leaf.grad is not None and tensor.requires_grad
            )
        _set_random_state(after, self.accelerator.device)
        _backward_pairs((tensor, leaf.grad) for tensor, leaf in self.cuts if leaf.grad is not None)


def _has_batch_statistics(tower: Tower) -> bool:
    """Whether some norm of this tower looks at the batch as a whole while training."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training for module in tower.modules())


def _backward_pairs(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Push gradients through the graphs of their tensors: (tensor, gradient)."""
    listed = list(pairs)
    if listed:
        torch.autograd.backward([tensor for tensor, _ in listed], [gradient for _, gradient in listed])


def _slice_inputs(inputs: Inputs, rows: slice) -> Inputs:
    if isinstance(inputs, Tensor):
        return inputs[rows]
    if isinstance(inputs, LocalFeatures):
        return _slice_features(inputs, rows)
    return Tokens(inputs.ids[rows], inputs.mask[rows])


def _slice_features(features: LocalFeatures, rows: slice) -> LocalFeatures:
    summary = None if features.summary is None else features.summary[rows]
    return LocalFeatures(features.values[rows], features.mask[rows], summary)


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(state: Tensor, device: torch.device) -> None:
    torch.cuda.set_rng_state(state, device) if device.type == "cuda" else torch.set_rng_state(state)
