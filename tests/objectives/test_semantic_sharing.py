"""The objectives of labels: as released, against plain loops, and where the released ones fall short."""

import math

import pytest
import torch

from polysem import LocalFeatures, PolysemError, objectives, sets
from polysem.objectives import LabelledBatch
from polysem.objectives.label_objectives import region_terms, word_terms
from support import assert_close, load_case


def released():
    """The authors' transformer and head, what they say of the fixture, and the linear maps of the masked tasks."""
    case = load_case("labelwise_shared")
    sizes = {"dim": case.meta["num_classes"], "input_dim": case.meta["d_model"], "ff": case.meta["d_ff"]}
    part = sets.build(
        "semantic_sharing",
        **sizes,
        layers=case.meta["layers"],
        heads=case.meta["heads"],
        normalise=False,
        variant="official",
    )
    part.load_official(case.weight).eval()
    found = {}
    for side in ("img", "txt"):
        values = case.input[side]
        found[side] = part(LocalFeatures.from_lengths(values, [values.shape[1]] * len(values)))
    return case, found


def guessed(case, found, side, head):
    item, place, wanted = case.input[f"{side}_mask"].t()
    states = found[side].states[item, place]
    return states @ case.weight[f"head.{head}.weight"].t() + case.weight[f"head.{head}.bias"], wanted


def sides(case, found):
    return [
        LabelledBatch(found[side].vectors, found[side].residual, None, case.input[f"labels_{side}"])
        for side in ("img", "txt")
    ]


def test_states_and_classification_loss_are_the_released_ones():
    case, found = released()
    for side in ("img", "txt"):
        assert_close(found[side].states, case.output[f"{side}_hidden"], atol=1e-5)
    images, texts = sides(case, found)
    part = objectives.build("semantic_sharing", variant="official")
    loss = part(images, texts, torch.eye(3, dtype=torch.bool))
    assert_close(loss.total, case.output["loss_type_1"][0], atol=1e-6)
    assert_close(loss.total, case.output["loss_type_13"][0], atol=1e-6)


def test_with_the_masked_tasks_too():
    case, found = released()
    total = objectives.build("semantic_sharing", variant="official")(
        *sides(case, found), torch.eye(3, dtype=torch.bool)
    ).total
    for side, head in (("img", "fc_MOC"), ("txt", "fc_MLM")):
        logits, wanted = guessed(case, found, side, head)
        assert_close(logits.sigmoid(), case.output[f"{side}_mask_prediction"], atol=1e-5)
        total = total + 0.0005 * word_terms(logits, wanted, "official").mean()
    assert_close(total, case.output["loss_type_12"][0], atol=1e-6)
    assert_close(total, case.output["loss_type_123"][0], atol=1e-6)


def test_the_released_guess_cannot_be_sure_and_ours_can():
    logits, word = torch.tensor([[50.0, -50.0, -50.0]]), torch.tensor([0])
    assert word_terms(logits, word, "official").item() > 0.5
    assert word_terms(logits, word).item() < 1e-6


def test_the_released_loss_does_not_mind_a_wrong_label_and_ours_does():
    labels = torch.tensor([[1.0, 0.0]])
    modest, rash = torch.tensor([[2.0, -2.0]]), torch.tensor([[2.0, 2.0]])
    positives = torch.ones(1, 1, dtype=torch.bool)

    def loss(logits, variant):
        side = LabelledBatch(logits[:, None], logits.sigmoid()[:, None], logits, labels)
        return objectives.build("semantic_sharing", variant=variant)(side, side, positives).total.item()

    assert loss(rash, "official") == pytest.approx(loss(modest, "official"))
    assert loss(rash, "paper") > loss(modest, "paper") + 1


def random_sides(items=(4, 6), classes=5, dim=3, dtype=torch.double):
    generator = torch.Generator().manual_seed(0)
    found = []
    flags = (torch.rand(items[0], classes, generator=generator) < 0.4).to(dtype)
    for count in items:
        logits = torch.randn(count, classes, generator=generator, dtype=dtype).requires_grad_()
        residual = torch.randn(count, 1, dim, generator=generator, dtype=dtype).requires_grad_()
        owner = torch.arange(count) * items[0] // count
        found.append(LabelledBatch(residual, residual, logits, flags[owner]))
    positives = torch.arange(items[0])[:, None] == (torch.arange(items[1]) * items[0] // items[1])[None]
    return *found, positives


def test_the_default_is_the_cross_entropy_of_every_label():
    images, texts, positives = random_sides()
    found = objectives.build("semantic_sharing", eta=0.3)(images, texts, positives)
    expected = 0.0
    for side in (images, texts):
        for logits, flags in zip(side.logits.tolist(), side.labels.tolist(), strict=True):
            for z, y in zip(logits, flags, strict=True):
                p = 1 / (1 + math.exp(-z))
                expected -= math.log(p if y else 1 - p) / len(side.logits) / 2
    pairs = [(i, t) for i in range(4) for t in range(6) if positives[i, t]]
    apart = sum((images.logits[i].sigmoid() - texts.logits[t].sigmoid()).square().sum().item() for i, t in pairs)
    assert found.total.item() == pytest.approx(expected + 0.3 * apart / len(pairs))
    assert found.parts["consistency"].item() == pytest.approx(apart / len(pairs))


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_dscmr_against_its_formulas(variant):
    images, texts, positives = random_sides()
    part = objectives.build("dscmr", discrimination=0.5, invariance=0.25, variant=variant)
    found = part(images, texts, positives)
    label = sum((s.logits - s.labels).norm(dim=1).mean().item() for s in (images, texts))
    alike = 0.0
    for one, other in ((images, images), (images, texts), (texts, texts)):
        terms = []
        for i in range(len(one.labels)):
            for j in range(len(other.labels)):
                c = torch.cosine_similarity(one.residual[i, 0], other.residual[j, 0], dim=0).item() / 2
                shared = (one.labels[i] * other.labels[j]).sum().item()
                terms.append(math.log(1 + math.exp(c)) - (shared if variant == "official" else float(shared > 0)) * c)
        alike += sum(terms) / len(terms)
    pairs = [(i, t) for i in range(4) for t in range(6) if positives[i, t]]
    apart = sum((images.residual[i, 0] - texts.residual[t, 0]).norm().item() for i, t in pairs) / len(pairs)
    assert found.total.item() == pytest.approx(label + 0.5 * alike + 0.25 * apart)


@pytest.mark.parametrize(
    "config", [{"name": "labels", "eta": 0.2}, {"name": "labels", "variant": "official"}, {"name": "dscmr"}], ids=str
)
def test_gradients_are_those_of_the_loss(config):
    images, texts, positives = random_sides(dim=5)
    part = objectives.build(**config)

    def loss(*tensors):
        first = LabelledBatch(tensors[0], tensors[0], tensors[1], images.labels)
        second = LabelledBatch(tensors[2], tensors[2], tensors[3], texts.labels)
        return part(first, second, positives).total

    assert torch.autograd.gradcheck(loss, (images.residual, images.logits, texts.residual, texts.logits))


def test_a_region_is_told_from_the_others_by_its_features():
    regions = torch.eye(4)
    assert region_terms(regions * 3, regions).max() < 1e-3
    assert region_terms(regions.roll(1, 0), regions).min() > 5


def test_lambda_is_what_a_config_calls_it():
    part = objectives.build("semantic_sharing", **{"lambda": 0.01})
    assert part.config["lambda"] == part.masked_weight == 0.01
    assert objectives.build(**part.config).config == part.config
    assert "lambda" in [knob.name for knob in objectives.describe("labels").knobs]
    with pytest.raises(PolysemError, match="lambda"):
        objectives.build("semantic_sharing", **{"lambda": -1.0})


def test_labels_that_do_not_fit_are_named():
    images, texts, positives = random_sides()
    wrong = LabelledBatch(images.vectors, images.residual, images.logits, images.labels[:, :3])
    with pytest.raises(PolysemError, match="images predict 5 classes"):
        objectives.build("semantic_sharing")(wrong, texts, positives)
    silent = LabelledBatch(texts.vectors, texts.residual, None, torch.zeros(6, 3, dtype=torch.double))
    with pytest.raises(PolysemError, match="predict no labels"):
        objectives.build("semantic_sharing")(images, silent, positives)
