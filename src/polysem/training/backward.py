"""One batch forward and backward: in one piece, or in chunks whose gradients equal those of the piece.

Caching (Gao et al., 2021): embed the batch chunk by chunk without a graph; take the loss of all embeddings and its
gradient with respect to them; embed each chunk again, now with a graph, and push its embeddings' gradient through.
Memory holds the graph of one chunk, and the loss still sees every negative of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from polysem import distributed
from polysem.encoders import Tokens
from polysem.features import LocalFeatures
from polysem.models import Model, Tower
from polysem.models.tower import Hidden, Inputs
from polysem.objectives import Loss
from polysem.sets import SetPrediction
from polysem.training.criterion import Criterion, Embedded, Verdict
from polysem.training.loading import Fed


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a batch came to; tensors are detached. gradients: of the loss with respect to the vectors."""

    loss: Loss
    verdict: Verdict
    images: Embedded
    texts: Embedded
    image_gradient: Tensor | None
    text_gradient: Tensor | None


def run(
    model: Model,
    criterion: Criterion,
    batch: Fed,
    accelerator: Accelerator,
    chunk: int | None = None,
    scale: float = 1.0,
) -> Outcome:
    """Forward, loss and backward: gradients are added to the weights' `grad`. scale: a factor on the loss."""
    if chunk is None or len(batch.images) <= chunk:
        return _whole(model, criterion, batch, accelerator, scale)
    return _cached(model, criterion, batch, accelerator, chunk, scale)


def _whole(model: Model, criterion: Criterion, batch: Fed, accelerator: Accelerator, scale: float) -> Outcome:
    with accelerator.autocast():
        images, texts = model(batch.images, batch.texts, (batch.image_keep, batch.text_keep), _hidden(criterion, batch))
    own = _embedded(images, criterion), _embedded(texts, criterion)
    for side in own:
        if side.vectors.requires_grad:  # a side may have nothing to learn, for an epoch or for good
            side.vectors.retain_grad()
    return _loss(model, criterion, batch, accelerator, own, scale)


def _cached(
    model: Model, criterion: Criterion, batch: Fed, accelerator: Accelerator, chunk: int, scale: float
) -> Outcome:
    captions = max(1, round(chunk * len(batch.texts) / len(batch.images)))
    hidden = _hidden(criterion, batch)
    sides = [
        _CachedSide(model.image, batch.images, batch.image_keep, hidden[0], chunk, accelerator, criterion),
        _CachedSide(model.text, batch.texts, batch.text_keep, hidden[1], captions, accelerator, criterion),
    ]
    leaves = sides[0].embed(), sides[1].embed()
    outcome = _loss(model, criterion, batch, accelerator, leaves, scale)
    for side, leaf in zip(sides, leaves, strict=True):
        side.push(leaf)
    return outcome


def _loss(
    model: Model,
    criterion: Criterion,
    batch: Fed,
    accelerator: Accelerator,
    own: tuple[Embedded, Embedded],
    scale: float,
) -> Outcome:
    images, texts = (_gathered(side, sizes) for side, sizes in zip(own, batch.sizes, strict=True))
    with accelerator.autocast():
        loss, verdict = criterion(
            images, texts, batch.positives, model.similarity, batch.labels, batch.blanks, batch.taught
        )
    accelerator.backward(loss.total * scale)
    return Outcome(
        Loss(loss.total.detach(), {name: part.detach() for name, part in loss.parts.items()}, loss.info),
        verdict,
        _detached(images),
        _detached(texts),
        own[0].vectors.grad,
        own[1].vectors.grad,
    )


class _CachedSide:
    """A tower over its inputs in chunks, twice: to embed, and to push the gradient through."""

    def __init__(
        self,
        tower: Tower,
        inputs: Inputs,
        keep: Tensor | None,
        hidden: Hidden | None,
        chunk: int,
        accelerator: Accelerator,
        criterion: Criterion,
    ) -> None:
        self.tower, self.accelerator, self.criterion = tower, accelerator, criterion
        self.before: list[tuple[Tensor, Tensor]] = []
        if has_batch_statistics(tower):
            # Batch norm looks at the whole batch: what comes before it cannot be cut. It is the cheap part.
            with accelerator.autocast():
                encoded, projected = (self._leaf(features) for features in tower.encode(inputs, keep, hidden))

            def cut(rows: slice) -> SetPrediction:
                return tower.embed(take_features(encoded, rows), take_features(projected, rows))
        else:

            def cut(rows: slice) -> SetPrediction:
                prediction: SetPrediction = tower(
                    take(inputs, rows),
                    None if keep is None else keep[rows],
                    None if hidden is None else hidden.rows(rows),
                )
                return prediction

        self.cut: Callable[[slice], SetPrediction] = cut
        self.chunks = [slice(first, first + chunk) for first in range(0, len(inputs), chunk)]
        self.states: list[Tensor] = []

    def _leaf(self, features: LocalFeatures) -> LocalFeatures:
        """The same features cut off from what they were made of; `push` sews them together again."""

        def cut_off(tensor: Tensor) -> Tensor:
            if not tensor.requires_grad:
                return tensor
            leaf = tensor.detach().requires_grad_()
            self.before.append((tensor, leaf))
            return leaf

        summary = None if features.summary is None else cut_off(features.summary)
        return LocalFeatures(cut_off(features.values), features.mask, summary)

    def embed(self) -> Embedded:
        """The embeddings as leaves, without a graph behind them."""
        parts = []
        with torch.no_grad(), self.accelerator.autocast():
            for rows in self.chunks:
                self.states.append(_random_state(self.accelerator.device))
                parts.append(_embedded(self.cut(rows), self.criterion))
        return Embedded(
            torch.cat([part.vectors for part in parts]).requires_grad_(),
            _together([part.residual for part in parts]),
            sum(part.length for part in parts) / len(parts),
            _together([part.logits for part in parts]),
            _together([part.states for part in parts]),
        )

    def push(self, leaf: Embedded) -> None:
        """Through each chunk, its embeddings' gradient. The same random numbers as before, or dropout would differ."""
        after = _random_state(self.accelerator.device)
        for rows, state in zip(self.chunks, self.states, strict=True):
            _set_random_state(state, self.accelerator.device)
            with self.accelerator.autocast():
                part = _embedded(self.cut(rows), self.criterion)
            pairs = [
                (tensor, whole.grad[rows])
                for tensor, whole in zip(part.tensors(), leaf.tensors(), strict=True)
                if whole.grad is not None and tensor.requires_grad
            ]
            torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])
        _set_random_state(after, self.accelerator.device)
        pairs = [(whole, leaf.grad) for whole, leaf in self.before if leaf.grad is not None]
        if pairs:
            torch.autograd.backward([whole for whole, _ in pairs], [gradient for _, gradient in pairs])


def has_batch_statistics(tower: Tower) -> bool:
    """Whether some norm of this tower looks at the batch as a whole while training."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training for module in tower.modules())


def take(inputs: Inputs, rows: slice) -> Inputs:
    """Some items of a batch."""
    if isinstance(inputs, Tensor):
        return inputs[rows]
    if isinstance(inputs, LocalFeatures):
        return take_features(inputs, rows)
    return Tokens(inputs.ids[rows], inputs.mask[rows])


def take_features(features: LocalFeatures, rows: slice) -> LocalFeatures:
    summary = None if features.summary is None else features.summary[rows]
    return LocalFeatures(features.values[rows], features.mask[rows], summary)


def _embedded(prediction: SetPrediction, criterion: Criterion) -> Embedded:
    length = float(prediction.residual.detach().norm(dim=-1).mean())
    needs = criterion.needs_residual
    states = None if criterion.guessing is None else prediction.states
    return Embedded(
        prediction.vectors, prediction.residual if needs else None, length, prediction.logits if needs else None, states
    )


def _hidden(criterion: Criterion, batch: Fed) -> tuple[Hidden | None, Hidden | None]:
    return (None, None) if criterion.guessing is None else criterion.guessing.hidden(batch.blanks)


def _together(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The chunks of a tensor as a leaf; None where there is none."""
    there = [part for part in parts if part is not None]
    return torch.cat(there).requires_grad_() if there else None


def _gathered(side: Embedded, sizes: list[int]) -> Embedded:
    """Of all processes. States stay: each process guesses what is hidden of its own tokens."""
    residual, logits = (None if own is None else distributed.gather(own, sizes) for own in (side.residual, side.logits))
    return Embedded(distributed.gather(side.vectors, sizes), residual, side.length, logits, side.states)


def _detached(side: Embedded) -> Embedded:
    return Embedded(side.vectors.detach(), None if side.residual is None else side.residual.detach(), side.length)


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(state: Tensor, device: torch.device) -> None:
    torch.cuda.set_rng_state(state, device) if device.type == "cuda" else torch.set_rng_state(state)
