"""Losses on global vectors and on single elements, against the slow, obvious way."""

import pytest
import torch

from polysem import objectives, recipes, similarity
from polysem.errors import PolysemError
from polysem.objectives.auxiliary import auxiliary_loss, element_scores
from polysem.sets import SetPrediction
from support import unit

POSITIVES = torch.eye(5, dtype=torch.bool)
OBJECTIVES = {"infonce": {"name": "infonce"}, "triplet": {"name": "triplet", "margin": 0.2}}


def side(k: int, seed: int, center: bool = True) -> SetPrediction:
    vectors = unit(5, k, 6, seed=seed).requires_grad_()
    return SetPrediction(
        vectors, None, vectors, global_vector=unit(5, 6, seed=seed + 9).requires_grad_() if center else None
    )


@pytest.mark.parametrize("name", ["soft_maximum", "smooth_chamfer", "mil"])
@pytest.mark.parametrize("loss", OBJECTIVES)
@pytest.mark.parametrize(("k", "size"), [(3, 1), (3, 2), (1, 2), (1, 1)])
def test_each_element_alone_is_an_item_of_one_vector(name, loss, k, size):
    part, objective = similarity.build(name), objectives.build(**OBJECTIVES[loss])
    images, texts = side(k, 0), side(size, 1)
    losses = []
    if k > 1 or size == 1:
        for element in range(k):
            scores = torch.zeros(5, 5)
            for i in range(5):
                for t in range(5):
                    scores[i, t] = part.scores(
                        images.vectors[i : i + 1, element : element + 1], texts.vectors[t : t + 1]
                    )
            losses.append(objective(scores, POSITIVES).total)
    if size > 1:
        for element in range(size):
            alone = texts.vectors[:, element : element + 1]
            losses.append(objective(part.scores(images.vectors, alone), POSITIVES).total)
    expected = sum(losses) / len(losses)
    found = auxiliary_loss("elements", objective, images, texts, POSITIVES, part)
    torch.testing.assert_close(found, expected)
    found_gradients = torch.autograd.grad(found, [images.vectors, texts.vectors])
    for mine, other in zip(
        found_gradients, torch.autograd.grad(expected, [images.vectors, texts.vectors]), strict=True
    ):
        torch.testing.assert_close(mine, other, atol=1e-6, rtol=1e-5)


def test_single_vectors_are_their_own_elements():
    part, images, texts = similarity.build("cosine"), side(1, 0), side(1, 1)
    torch.testing.assert_close(
        element_scores(images.vectors, texts.vectors, part)[0], part.scores(images.vectors, texts.vectors)
    )


@pytest.mark.parametrize("loss", OBJECTIVES)
def test_global_vectors_are_compared_by_their_cosine(loss):
    objective, images, texts = objectives.build(**OBJECTIVES[loss]), side(3, 0), side(1, 1, center=False)
    cosines = [[float(x @ y) for y in texts.vectors[:, 0].detach()] for x in images.global_vector.detach()]
    found = auxiliary_loss("global", objective, images, texts, POSITIVES, similarity.build("soft_maximum"))
    torch.testing.assert_close(found, objective(torch.tensor(cosines), POSITIVES).total)
    found.backward()
    assert images.vectors.grad is None
    assert images.global_vector.grad.abs().sum() > 0
    with pytest.raises(PolysemError, match="texts are sets of 2"):
        auxiliary_loss("global", objective, images, side(2, 1, center=False), POSITIVES, similarity.build("mil"))


def test_a_recipe_takes_them_with_weights_and_objectives_of_their_own():
    given = "auxiliary=[{on: global, weight: 0.5}, {on: elements, objective: {name: infonce}}]"
    entries = recipes.load("small-dive", [given]).auxiliary
    assert [(entry.on, entry.weight, entry.objective) for entry in entries] == [
        ("global", 0.5, None),
        ("elements", 1.0, {"name": "infonce"}),
    ]
    assert recipes.load("small-dive").auxiliary == []


@pytest.mark.parametrize(
    ("recipe", "given", "said"),
    [
        ("small-dive", "[{on: all}]", "auxiliary"),
        ("small-dive", "[{on: global, objective: {name: infonc}}]", r"auxiliary\.0\.objective.*infonce"),
        ("small-dive", "[{on: global, objective: {name: mmd}}]", r"auxiliary\.0\.objective.*'mmd'"),
        ("small-semantic-sharing", "[{on: global}]", r"'semantic_sharing' takes no scores.*infonce"),
        ("small-dive", "[{on: global}, {on: global}]", r"auxiliary\.1.*already"),
        ("dive-without-global", "[{on: global}]", r"image\.sets 'slots' makes 4 vectors.*competing_readings"),
        ("small-dive", "[{on: elements, weight: -1}]", "weight"),
    ],
)
def test_those_that_cannot_be_are_refused_before_anything_is_read(recipe, given, said):
    with pytest.raises(PolysemError, match=said):
        recipes.load(recipe, [f"auxiliary={given}"])


@pytest.mark.parametrize("name", ["soft_maximum", "smooth_chamfer"])
def test_residuals_are_sets_of_their_directions(name):
    part, objective, texts = similarity.build(name), objectives.build("infonce"), side(1, 1)
    residual = (3 * torch.randn(5, 2, 6, generator=torch.manual_seed(4))).requires_grad_()
    images = SetPrediction(side(3, 0).vectors, None, residual)  # one element is the global vector itself
    found = auxiliary_loss("residual", objective, images, texts, POSITIVES, part)
    scores = torch.zeros(5, 5)
    for i in range(5):
        directions = torch.stack([element / element.norm() for element in residual[i]])
        for t in range(5):
            scores[i, t] = part.scores(directions[None], texts.vectors[t : t + 1])
    torch.testing.assert_close(found, objective(scores, POSITIVES).total)
    found.backward()
    assert images.vectors.grad is None
    assert residual.grad.abs().sum() > 0
