"""A cached batch gives the gradients of the whole one, and both those of an obvious implementation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polysem.features import LocalFeatures
from polysem.training import backward
from polysem.training.loading import TrainingBatch
from training.small import assembled, cpu, gradients, make_data, tiny

SLOTS = ("image.sets.head_dim=8", "text.sets.head_dim=8", "image.encoder.dropout=0.0", "text.encoder.dropout=0.0")


def double(inputs):
    if isinstance(inputs, LocalFeatures):
        return LocalFeatures(inputs.values.double(), inputs.mask)
    return inputs


def doubled(batch: TrainingBatch) -> TrainingBatch:
    labels = None if batch.labels is None else (batch.labels[0].double(), batch.labels[1].double())
    masked = None if batch.masked is None else replace(batch.masked, regions=batch.masked.regions.double())
    return replace(batch, images=double(batch.images), labels=labels, masked=masked)


RECIPES = {
    "vse-infty": (),  # batch norm in the image tower
    "vse-2ad": (),
    "dive": (*SLOTS, "image.sets.dropout=0.0", "text.sets.dropout=0.0", "training.captions=all"),
    "dive with auxiliary losses": (
        *(*SLOTS, "image.sets.dropout=0.0", "text.sets.dropout=0.0", "text.sets.k=2"),
        "auxiliary=[{on: global, weight: 0.5}, {on: elements, weight: 2, objective: {name: infonce}}]",
    ),
    "dive with phrases": (
        *(*SLOTS, "image.sets.dropout=0.0", "text.sets.dropout=0.0"),
        "phrases={weight: 0.5, least: 2, share: 1}",
        "auxiliary=[{on: residual, weight: 0.5}]",
    ),
    "dive-pie-net": ("training.captions=all", "image.encoder.dropout=0.0", "text.encoder.dropout=0.0"),
}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_cached_gradients_equal_those_of_the_whole_batch(name, chunk, tmp_path):
    recipe = tiny(name.split()[0], *RECIPES[name])
    model, criterion, _, feeder = assembled(recipe, make_data(tmp_path, english="phrases" in name))
    model.double().train()
    batch = doubled(next(iter(feeder.epoch(0))))
    buffers = {key: value.clone() for key, value in model.state_dict().items()}

    whole, _ = backward.run_batch(model, criterion, batch, cpu())
    expected, after = gradients(model), {key: value.clone() for key, value in model.state_dict().items()}
    model.zero_grad()
    model.load_state_dict(buffers)
    cached, _ = backward.run_batch(model, criterion, batch, cpu(), chunk=chunk)
    found = gradients(model)

    torch.testing.assert_close(cached.total, whole.total)
    assert expected.keys() == found.keys()
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-6, atol=1e-9, msg=lambda m, k=key: f"{k}: {m}")
    for key, value in model.state_dict().items():  # batch norm saw the batch once
        torch.testing.assert_close(value, after[key])


def test_caching_draws_the_same_dropout_in_both_passes(tmp_path):
    """With dropout the two passes agree only if the second repeats the luck of the first: then the gradient of the
    embeddings belongs to the embeddings that are pushed through, which a finite difference shows."""
    recipe = tiny("dive", "image.sets.head_dim=8", "text.sets.head_dim=8", "training.captions=all")
    model, criterion, _, feeder = assembled(recipe, make_data(tmp_path))
    model.double().train()
    batch = doubled(next(iter(feeder.epoch(0))))
    parameter = model.text.sets.block.norm.weight

    def loss() -> float:
        torch.manual_seed(3)
        model.zero_grad()
        return float(backward.run_batch(model, criterion, batch, cpu(), chunk=2)[0].total)

    loss()
    slope = float(parameter.grad[0])
    step = 1e-5
    parameter.data[0] += step
    above = loss()
    parameter.data[0] -= 2 * step
    below = loss()
    assert slope == pytest.approx((above - below) / (2 * step), rel=1e-4, abs=1e-8)


def test_accumulated_batches_add_their_gradients(tmp_path):
    recipe = tiny("vse-infty")
    model, criterion, _, feeder = assembled(recipe, make_data(tmp_path))
    model.double().eval()  # batch norm's moving averages would differ between the two orders
    first, second = (doubled(batch) for _, batch in zip(range(2), feeder.epoch(0), strict=False))
    single = []
    for batch in (first, second):
        model.zero_grad()
        backward.run_batch(model, criterion, batch, cpu(), scale=0.5)
        single.append(gradients(model))
    model.zero_grad()
    for batch in (first, second):
        backward.run_batch(model, criterion, batch, cpu(), scale=0.5)
    for key, value in gradients(model).items():
        torch.testing.assert_close(value, single[0][key] + single[1][key])


def test_seeding_draws_what_torch_would_and_queues_nothing_for_absent_devices():
    torch.manual_seed(3)
    drawn, queued = torch.rand(4), len(torch.cuda._queued_calls)
    backward.seed_random(3)
    assert torch.equal(torch.rand(4), drawn)
    if not torch.accelerator.is_available():
        assert len(torch.cuda._queued_calls) == queued
