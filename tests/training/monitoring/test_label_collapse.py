"""A run whose items are all said to have the same labels is named; one that tells them apart is not."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from polysem import objectives
from polysem.objectives import LabelledBatch
from polysem.training import train
from polysem.training.monitoring.diagnosis import PATIENCE, StepFacts, TrainingMonitor, collapsed_label_loss
from training.labelled import make_labelled, tiny

pytestmark = pytest.mark.slow

LONG = ("training.epochs=8", "training.validate_every=8")  # of 20 steps each


def side(items: int, classes: int = 5, seed: int = 0, alike: bool = False) -> LabelledBatch:
    made = torch.Generator().manual_seed(seed)
    logits, vectors = torch.randn(items, classes, generator=made), torch.randn(items, 1, 8, generator=made)
    if alike:
        logits, vectors = logits[:1].expand_as(logits), vectors[:1].expand_as(vectors)
    labels = (torch.rand(items, classes, generator=made) < 0.3).float()
    return LabelledBatch(torch.nn.functional.normalize(vectors, dim=-1), vectors, logits, labels)


@pytest.mark.parametrize("name", ["labels", "dscmr"])
@pytest.mark.parametrize("variant", ["paper", "official"])
def test_the_collapsed_loss_is_that_of_items_which_all_say_the_same(name, variant):
    part = objectives.build(name, variant=variant)
    images, texts, positives = side(6, alike=True), side(6, seed=1, alike=True), torch.eye(6, dtype=torch.bool)
    if name == "labels" and variant == "official":  # it reads the class vector
        images, texts = (
            LabelledBatch(s.vectors, s.logits.sigmoid()[:, None], s.logits, s.labels) for s in (images, texts)
        )
    assert collapsed_label_loss(part, images, texts, positives) == pytest.approx(
        float(part(images, texts, positives).total)
    )


def test_items_that_differ_cost_something_else_than_their_average():
    part, positives = objectives.build("labels"), torch.eye(6, dtype=torch.bool)
    images, texts = side(6), side(6, seed=1)
    told = [LabelledBatch(s.vectors, s.residual, 9 * (2 * s.labels - 1), s.labels) for s in (images, texts)]
    assert float(part(*told, positives).total) < 0.1 * collapsed_label_loss(part, *told, positives)


@pytest.mark.parametrize(("spread", "off", "named"), [(1e-3, 0.01, True), (0.05, 0.01, False), (1e-3, -0.2, False)])
def test_it_takes_both_the_loss_and_the_scores(spread, off, named):
    monitor, found = TrainingMonitor(), []
    for step in range(1, 60 + PATIENCE):
        facts = StepFacts(5 * (1 + off), 5.0, "labels", spread, step, grad_norm=1.0, lr=1e-3)
        found += monitor.observe(facts)
    assert [finding.name for finding in found] == (["label collapse"] if named else [])
    assert all("--set optimiser.lr=0.0001" in finding.advice for finding in found)


@pytest.fixture
def nothing_to_see(tmp_path):
    """Labels that neither pictures nor captions tell anything of."""
    folder = make_labelled(tmp_path / "blank")
    for name in ("train", "dev"):
        np.save(folder / f"{name}_ims.npy", np.ones_like(np.load(folder / f"{name}_ims.npy")))
        captions = folder / f"{name}_caps.txt"
        captions.write_text("a picture\n" * len(captions.read_text().splitlines()))
    return folder


def findings(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["kind"] == "step" for line in lines) > 50 + PATIENCE
    return [line["name"] for line in lines if line["kind"] == "diagnosis"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["semantic-sharing", "dscmr"])
def test_a_run_that_cannot_tell_items_apart_is_named(name, nothing_to_see, tmp_path):
    train(tiny(name, *LONG, "optimiser.lr=3e-3"), nothing_to_see, tmp_path / "run", tracker=None)
    assert "label collapse" in findings(tmp_path / "run")


@pytest.mark.slow
def test_a_run_that_learns_is_left_alone(tmp_path):
    recipe = tiny("semantic-sharing-consistency", *LONG, "optimiser.lr=3e-3")
    train(recipe, make_labelled(tmp_path / "data"), tmp_path / "run", tracker=None)
    assert findings(tmp_path / "run") == []
