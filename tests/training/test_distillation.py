"""A teacher's share of the loss: what it is, that it teaches, and teachers that cannot."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import polysem
from polysem.data import open_collection, train_overlap
from polysem.data.collection import load_features
from polysem.encoders.backbones import SourceError
from polysem.errors import ConfigError, InputError
from polysem.training import backward, train
from polysem.training.backward import Criterion
from polysem.training.distillation import embed_with_teacher, kl_divergence
from polysem.training.splits import split
from training.small import assembled, cpu, gradients, make_data, tiny
from training.test_backward import doubled

pytestmark = pytest.mark.slow

SLOTS = (
    *("image.sets.head_dim=8", "text.sets.head_dim=8", "image.sets.dropout=0.0", "text.sets.dropout=0.0"),
    "regularisers=[]",
)
LONG = ("training.epochs=8", "training.validate_every=8", "optimiser.lr=0.02")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data") / "toy")


@pytest.fixture(scope="module")
def teacher(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("teacher") / "run"
    train(tiny("vse-infty", *LONG), data, out, tracker=None)
    return out


def taught_by(model, **knobs):
    entry = {"model": str(model), **knobs}
    return f"teacher={json.dumps(entry)}"


def apart(said, meant, temperature):
    """The divergence of one row, spelt out."""
    weights = [[math.exp(value / temperature) for value in row] for row in (said, meant)]
    p, q = ([each / sum(row) for each in row] for row in weights)
    return sum(b * (math.log(b) - math.log(a)) for a, b in zip(p, q, strict=True))


def test_the_loss_is_the_divergence_of_the_answers_both_ways():
    generator = torch.Generator().manual_seed(0)
    scores, taught = torch.rand(2, 3, 4, generator=generator, dtype=torch.double)
    ways = [(scores, taught), (scores.t(), taught.t())]
    expected = [sum(apart(*rows, 0.1) for rows in zip(s.tolist(), t.tolist(), strict=True)) / len(s) for s, t in ways]
    assert float(kl_divergence(scores, taught, 0.1)) == pytest.approx(sum(expected) / 2)
    assert float(kl_divergence(taught + 3.0, taught, 0.1)) == pytest.approx(0.0, abs=1e-12)  # the same answers
    assert torch.autograd.gradcheck(lambda s: kl_divergence(s, taught, 0.1), scores.requires_grad_())


def learn(model, criterion, batch, chunk):
    model.zero_grad()
    loss, _ = backward.run_batch(model, criterion, batch, cpu(), chunk=chunk)
    return loss, gradients(model)


@pytest.mark.parametrize("chunk", [None, 2])
def test_objective_and_teacher_share_the_loss(data, teacher, chunk, tmp_path):
    recipes = [tiny("dive", *SLOTS, taught_by(teacher, weight=weight, temperature=0.1)) for weight in (0.25, 1.0)]
    model, _, batches, feeder = assembled(recipes[0], data)
    feeder.teacher = embed_with_teacher(
        polysem.load(teacher), recipes[0].teacher, batches.collection, (None, None), tmp_path / "t"
    )
    batch = doubled(next(iter(feeder.epoch(0))))
    model.double().eval()  # without dropout: the same batch is learned from three times
    objective, by_objective = learn(model, Criterion(tiny("dive", *SLOTS)), batch, chunk)
    both, by_both = learn(model, Criterion(recipes[0]), batch, chunk)
    taught, by_teacher = learn(model, Criterion(recipes[1]), batch, chunk)
    assert "teacher" not in objective.parts
    assert float(both.total) == pytest.approx(0.75 * float(objective.total) + 0.25 * float(taught.total))
    assert float(both.parts["teacher"]) == pytest.approx(float(taught.total))
    for name, gradient in by_both.items():
        torch.testing.assert_close(gradient, 0.75 * by_objective[name] + 0.25 * by_teacher[name])


def test_a_batch_is_taught_by_the_scores_of_its_own_items(data, teacher, tmp_path):
    recipe = tiny("vse-infty", taught_by(teacher))
    _, _, batches, feeder = assembled(recipe, data)
    model, train = polysem.load(teacher), batches.collection
    feeder.teacher = embed_with_teacher(model, recipe.teacher, train, (None, None), tmp_path / "kept")
    batch, fed = next(iter(batches.epoch(1))), next(iter(feeder.epoch(1)))
    images = model.encode_images([np.array(load_features(train[int(place)].media)) for place in batch.images])
    texts = model.encode_texts([train.captions[place] for place in batch.captions])
    torch.testing.assert_close(fed.teacher_scores, torch.as_tensor(model.similarity(images, texts)))
    again = embed_with_teacher(model, recipe.teacher, train, (None, None), tmp_path / "kept")  # read, not made
    assert torch.equal(again.images, feeder.teacher.images)
    assert torch.equal(again.texts, feeder.teacher.texts)


@pytest.mark.slow
def test_a_student_comes_to_answer_as_its_teacher_does(data, teacher, tmp_path):
    settings = (*LONG, "training.seed=1")
    train(tiny("vse-infty", *settings), data, tmp_path / "alone", tracker=None)
    asked = taught_by(teacher, weight=1.0)
    train(tiny("vse-infty", *settings, asked), data, tmp_path / "taught", tracker=None)
    assert not (tmp_path / "taught" / "teacher.safetensors").exists()

    val = split(open_collection(data), tiny("vse-infty").data).val
    images = [np.array(load_features(item.media)) for item in val]

    def scores(folder):
        model = polysem.load(folder)
        return model.similarity(model.encode_images(images), model.encode_texts(val.captions))

    found = {name: float(kl_divergence(scores(tmp_path / name), scores(teacher), 0.05)) for name in ("alone", "taught")}
    assert found["taught"] < 0.8 * found["alone"]
    records = [json.loads(line) for line in (tmp_path / "taught" / "metrics.jsonl").read_text().splitlines()]
    told = [record["parts"]["teacher"] for record in records if record["kind"] == "step"]
    assert told[-1] < told[0]


def test_a_student_has_learned_from_its_teachers_items_too(data, teacher, tmp_path):
    model = polysem.load(teacher)
    model.provenance["data"]["items"] = ["000000000000"]
    model.save(tmp_path / "elsewhere")
    asked = taught_by(tmp_path / "elsewhere")
    train(tiny("vse-infty", "training.epochs=1", asked), data, tmp_path / "taught", tracker=None)
    found = polysem.load(tmp_path / "taught").provenance["data"]["items"]
    assert found == [
        "000000000000",
        *train_overlap.build_sketch(split(open_collection(data), tiny("vse-infty").data).train),
    ]


def test_a_teacher_that_knows_the_validation_items_is_refused(data, teacher, tmp_path):
    model = polysem.load(teacher)
    model.provenance["data"]["items"] = train_overlap.build_sketch(
        split(open_collection(data), tiny("vse-infty").data).val
    )
    model.save(tmp_path / "leaky")
    with pytest.raises(InputError, match="trained on 100% of the validation items"):
        train(tiny("vse-infty", taught_by(tmp_path / "leaky")), data, tmp_path / "run", tracker=None)


def test_a_teacher_that_cannot_read_the_items_is_refused(teacher, tmp_path):
    wider = make_data(tmp_path / "wider", dim=12)
    with pytest.raises(InputError, match="width"):
        train(tiny("vse-infty", taught_by(teacher)), wider, tmp_path / "run", tracker=None)


def test_teachers_that_are_none(data, tmp_path):
    with pytest.raises(SourceError, match="nowhere"):
        train(tiny("vse-infty", taught_by(tmp_path / "nowhere")), data, tmp_path / "run", tracker=None)
    with pytest.raises(ConfigError, match="weight"):
        tiny("vse-infty", taught_by("polysem/photo-small", weight=0.0))
    with pytest.raises(ConfigError, match="learns labels"):
        tiny("semantic-sharing", taught_by("polysem/photo-small"))
