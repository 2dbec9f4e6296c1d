"""One training step of every recipe: its loss and every gradient, against a plain twin that pads nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from polysem import objectives, recipes
from polysem.models import Model
from polysem.objectives.auxiliary import auxiliary_loss
from polysem.recipes import Recipe
from recipes import slow, tiny

pytestmark = pytest.mark.slow


def _distinct() -> list[str]:
    """One recipe for each different computation; those that differ only in rates or schedules are one."""
    found: dict[str, str] = {}
    for name in recipes.names():
        found.setdefault(tiny.maths(recipes.load(name)), name)
    return sorted(found.values())


def _last_stage(recipe: Recipe) -> int:
    mining = recipe.objective.get("mining")
    return int(mining[-1][0]) if isinstance(mining, list) else 0


CASES = [(name, _last_stage(recipes.load(name))) for name in _distinct()]
CASES += [(name, 0) for name in ("vse-infty", "small-dive")]  # the first epoch, over all negatives: summed and averaged


def _fast(model: Model, recipe: Recipe, given: tiny.Batch, epoch: int) -> Tensor:
    images, texts = model(given.images, given.texts, given.keep)
    objective = objectives.build(**recipe.objective)
    if isinstance(objective, objectives.LabelObjective):
        sides = [
            objectives.LabelledBatch(side.vectors, side.residual, side.logits, own)
            for side, own in zip((images, texts), given.labels, strict=True)
        ]
        return objective(sides[0], sides[1], given.positives).total
    assert isinstance(objective, objectives.Objective)
    objective.set_epoch(epoch)
    total = objective(model.similarity.scores(images.vectors, texts.vectors), given.positives).total
    for auxiliary in recipe.auxiliary:
        alone = auxiliary_loss(auxiliary.on, objective, images, texts, given.positives, model.similarity)
        total = total + auxiliary.weight * alone
    for entry in recipe.regularisers:
        regulariser = objectives.build(entry.name, **entry.knobs)
        sides = (images.vectors, texts.vectors) if entry.on == "vectors" else (images.residual, texts.residual)
        total = total + entry.weight * regulariser(*sides).total
    return total


def _gradients(model: Model, loss: Tensor) -> dict[str, Tensor]:
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for (name, parameter), gradient in zip(named.items(), found, strict=True)
    }


@pytest.mark.parametrize(("name", "epoch"), CASES)
def test_a_step_has_the_loss_and_the_gradients_of_its_plain_twin(name: str, epoch: int) -> None:
    _compare(recipes.load(name), epoch)


def test_so_has_one_of_readings_of_several_networks() -> None:
    overrides = ["image.encoder.name=grids", "image.encoder.models=[one, another]", "image.sets.name=attention_pooling"]
    overrides += ["image.project=null", "image.pool=null", "image.encoder.trainable=all"]
    overrides += ["text.project=null", "text.pool=null", "text.sets.name=attention_pooling", "text.sets.k=2"]
    _compare(recipes.load("small-dive-mil", overrides), 0)


def _compare(recipe: Recipe, epoch: int) -> None:
    model, given = tiny.build(recipe), tiny.batch(recipe)
    loss = _fast(model, recipe, given, epoch)
    gradients = _gradients(model, loss)
    expected = slow.loss(
        model, recipe, given.each_image, given.each_text, given.keep, given.positives, epoch, given.labels
    )
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-9)
    assert loss.item() > 0
    plain = _gradients(model, expected)
    scale = max(float(gradient.abs().max()) for gradient in plain.values())
    assert scale > 1e-4
    for parameter, gradient in gradients.items():
        # Sines are single precision in the parts: that much may differ.
        torch.testing.assert_close(
            gradient, plain[parameter], rtol=1e-3, atol=1e-5 * scale, msg=lambda text, p=parameter: f"{p}: {text}"
        )


def test_the_twin_would_notice_a_difference() -> None:
    recipe = recipes.load("dive")
    model, given = tiny.build(recipe), tiny.batch(recipe)
    other = recipes.load("dive", ["objective.margin=0.25"])
    loss = _fast(model, recipe, given, 0)
    twin = slow.loss(model, other, given.each_image, given.each_text, given.keep, given.positives, 0)
    assert abs(loss.item() - twin.item()) > 0.01
