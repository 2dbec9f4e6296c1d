"""What must hold for every objective, and each against a slow, obvious computation."""

import json
import math

import pytest
import torch

from polysem import PolysemError, objectives
from polysem.errors import InputError
from support import unit

SETTINGS = {
    "triplet": {"name": "triplet"},
    "triplet-mean": {"name": "triplet", "reduction": "mean"},
    "triplet-all": {"name": "triplet", "mining": "all"},
    "triplet-all-mean": {"name": "triplet", "mining": "all", "reduction": "mean"},
    "triplet-semi-hard": {"name": "triplet", "mining": "semi_hard"},
    "triplet-semi-hard-mean": {"name": "triplet", "mining": "semi_hard", "reduction": "mean"},
    "triplet-semi-hard-official": {
        "name": "triplet",
        "mining": "semi_hard",
        "reduction": "mean",
        "variant": "official",
    },
    "infonce": {"name": "infonce"},
    "adopt": {"name": "adopt"},
    "adopt-paper": {"name": "adopt", "variant": "paper"},
    "adopt-official": {"name": "adopt", "variant": "official"},
    "adopt-constant": {"name": "adopt", "k": 3},
    "adopt-margin": {"name": "adopt", "margin": 0.1},
}
every_objective = pytest.mark.parametrize("setting", SETTINGS)

# Images with several texts, a text with two images, an image and a text without a match.
MANY = torch.tensor(
    [
        [1, 1, 0, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 1, 0],
    ],
    dtype=torch.bool,
)


def scores_for(positives, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(positives.shape, generator=generator, dtype=dtype)
    return 0.5 * noise + 0.25 * positives


def obvious(part, scores, positives):
    """One positive pair and one negative at a time, rows as anchors; the two directions are added by the caller."""
    name, terms = part.config["name"], []
    k = part.choose_k(scores, positives) if name == "adopt" else None
    for i in range(len(scores)):
        negatives = [float(scores[i, n]) for n in range(scores.shape[1]) if not positives[i, n]]
        for t in range(scores.shape[1]):
            if not positives[i, t] or not negatives:
                continue
            match = float(scores[i, t])
            if name == "triplet":
                hinges = [max(0.0, part.margin + n - match) for n in negatives]
                if part.mining == "hardest":
                    terms.append(max(hinges))
                elif part.mining == "all":
                    terms.extend(hinges)
                elif part.variant == "official":
                    terms.extend(min(h, part.margin) for h in hinges if h > 0)
                else:
                    terms.extend(h for h in hinges if 0 < h < part.margin)
            else:
                margin = 0.0
                if name == "adopt":
                    if part.variant == "official":
                        ranked = sorted(
                            ((0.0 if positives[i, n] else float(scores[i, n]), n) for n in range(scores.shape[1])),
                            reverse=True,
                        )
                        negatives = [float(scores[i, n]) for _, n in ranked[:k]]
                    negatives, margin = sorted(negatives, reverse=True)[:k], part.margin
                against = sum(math.exp((n + margin) / part.temperature) for n in negatives)
                own = math.exp(match / part.temperature)
                printed = name == "adopt" and part.variant == "paper"
                terms.append(-math.log(own / (against if printed else own + against)))
    if name == "triplet" and part.reduction == "sum":
        return sum(terms)
    return sum(terms) / len(terms)


@every_objective
@pytest.mark.parametrize("positives", [torch.eye(6, dtype=torch.bool), MANY], ids=["one-to-one", "many"])
def test_against_the_formula(setting, positives):
    part = objectives.build(**SETTINGS[setting])
    scores = scores_for(positives)
    loss = part(scores, positives)
    i2t, t2i = obvious(part, scores, positives), obvious(part, scores.t(), positives.t())
    halved = part.config["name"] == "infonce" or (part.config["name"] == "adopt" and part.variant != "paper")
    assert float(loss.parts["i2t"]) == pytest.approx(i2t, rel=1e-9)
    assert float(loss.parts["t2i"]) == pytest.approx(t2i, rel=1e-9)
    assert float(loss.total) == pytest.approx((i2t + t2i) / (2 if halved else 1), rel=1e-9)


@every_objective
@pytest.mark.parametrize("positives", [torch.eye(2, dtype=torch.bool), MANY], ids=["two", "many"])
def test_gradcheck(setting, positives):
    part = objectives.build(**SETTINGS[setting])
    # K of AdOpt is a step function of the scores: a constant for the purpose of the gradient.
    scores = scores_for(positives, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: part(s, positives).total, (scores,), eps=1e-7, atol=1e-5)


@every_objective
@pytest.mark.parametrize(
    "scores",
    [torch.zeros(3, 3), torch.ones(3, 3), -torch.ones(3, 3), 2 * torch.eye(3) - 1, 1 - 2 * torch.eye(3)],
    ids=["zeros", "ones", "minus", "perfect", "inverted"],
)
def test_gradients_are_finite_at_ties_and_extremes(setting, scores):
    part = objectives.build(**SETTINGS[setting])
    scores = scores.clone().requires_grad_()
    loss = part(scores, torch.eye(3, dtype=torch.bool))
    loss.total.backward()
    assert loss.total.isfinite()
    assert scores.grad.isfinite().all()


# The released AdOpt can draw a match as a negative; that is what its variant is kept for.
@pytest.mark.parametrize("setting", [setting for setting in SETTINGS if setting != "adopt-official"])
def test_siblings_are_never_negatives(setting):
    """No match is pushed down, however high its siblings score."""
    part = objectives.build(**SETTINGS[setting])
    positives = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]], dtype=torch.bool)
    scores = scores_for(positives)
    scores[0, 1] += 0.5
    scores.requires_grad_()
    gradient = torch.autograd.grad(part(scores, positives).total, scores)[0]
    assert (gradient[positives] <= 0).all()
    assert (gradient[~positives] >= 0).all()
    assert gradient.abs().sum() > 0


@every_objective
def test_a_batch_without_negatives_costs_nothing(setting):
    part = objectives.build(**SETTINGS[setting])
    scores = torch.rand(2, 3).requires_grad_()
    loss = part(scores, torch.ones(2, 3, dtype=torch.bool))
    loss.total.backward()
    assert float(loss.total.detach()) == 0
    assert scores.grad.abs().sum() == 0


@every_objective
def test_items_may_come_in_any_order(setting):
    part = objectives.build(**SETTINGS[setting])
    scores, rows, columns = scores_for(MANY), torch.tensor([3, 0, 4, 1, 2]), torch.randperm(7)
    shuffled = part(scores[rows][:, columns], MANY[rows][:, columns])
    assert float(shuffled.total) == pytest.approx(float(part(scores, MANY).total), rel=1e-9)


@every_objective
def test_bad_input_is_named(setting):
    part = objectives.build(**SETTINGS[setting])
    scores, eye = torch.rand(3, 3), torch.eye(3, dtype=torch.bool)
    with pytest.raises(PolysemError, match=r"\(3,\)"):
        part(scores[0], eye[0])
    with pytest.raises(PolysemError, match=r"torch\.eye.*float32"):
        part(scores, torch.eye(3))
    with pytest.raises(PolysemError, match=r"\(3, 3\).*\(2, 3\)"):
        part(scores, eye[:2])
    with pytest.raises(PolysemError, match="No pair"):
        part(scores, torch.zeros_like(eye))
    scores[1, 2] = float("nan")
    with pytest.raises(PolysemError, match=r"1 of 9 scores.*image 1, text 2"):
        part(scores, eye)


@every_objective
def test_config_and_state_rebuild_it(setting):
    part = objectives.build(**SETTINGS[setting])
    rebuilt = objectives.build(**part.config)
    rebuilt.load_state_dict(part.state_dict())
    scores = scores_for(MANY)
    assert torch.equal(rebuilt(scores, MANY).total, part(scores, MANY).total)


def test_semi_hard_negatives_do_not_outrank_the_match():
    scores = torch.tensor([[0.5, 0.6, 0.45, 0.1]])
    positives = torch.tensor([[True, False, False, False]])
    loss = objectives.build("triplet", mining="semi_hard", reduction="mean")(scores, positives)
    assert float(loss.parts["i2t"]) == pytest.approx(0.2 + 0.45 - 0.5)
    official = objectives.build("triplet", mining="semi_hard", reduction="mean", variant="official")
    assert float(official(scores, positives).parts["i2t"]) == pytest.approx((0.2 + 0.15) / 2)


def test_a_mining_schedule_follows_the_epoch():
    part = objectives.build("triplet", mining=[(0, "all"), (1, "semi_hard"), (5, "hardest")])
    seen = []
    for epoch in (0, 1, 4, 5, 30):
        part.set_epoch(epoch)
        seen.append(part.mining)
    assert seen == ["all", "semi_hard", "semi_hard", "hardest", "hardest"]
    scores, positives = scores_for(MANY), MANY
    part.set_epoch(0)
    assert torch.equal(
        part(scores, positives).total, objectives.build("triplet", mining="all")(scores, positives).total
    )
    with pytest.raises(InputError, match="from 0"):
        part.set_epoch(-1)


def test_a_schedule_from_json_is_a_schedule():
    part = objectives.build("triplet", mining=[[0, "all"], [1, "hardest"]])
    assert part.schedule == [(0, "all"), (1, "hardest")]
    assert json.loads(json.dumps(part.config)) == part.config
    assert objectives.build(**part.config).schedule == part.schedule


def test_the_share_of_active_pairs_is_reported():
    part = objectives.build("triplet")
    assert part(2 * torch.eye(4), torch.eye(4, dtype=torch.bool)).info["active"] == 0
    assert part(torch.zeros(4, 4), torch.eye(4, dtype=torch.bool)).info["active"] == 1


def test_a_collapsed_space_is_stuck_at_known_constants():
    """What a training loop can watch for: twice the batch times the margin, and the logarithm of the batch."""
    scores, positives = torch.ones(32, 32), torch.eye(32, dtype=torch.bool)
    assert float(objectives.build("triplet")(scores, positives).total) == pytest.approx(2 * 32 * 0.2)
    assert float(objectives.build("infonce")(scores, positives).total) == pytest.approx(math.log(32))


def test_infonce_is_symmetric_cross_entropy_for_one_text_per_image():
    scores = unit(8, 6) @ unit(8, 6, seed=1).t()
    target = torch.arange(8)
    expected = sum(torch.nn.functional.cross_entropy(s / 0.05, target) for s in (scores, scores.t())) / 2
    torch.testing.assert_close(objectives.build("infonce")(scores, torch.eye(8, dtype=torch.bool)).total, expected)


@pytest.mark.parametrize("value", [-1.0, -0.37, 0.0, 0.7, 0.999])
def test_a_negative_that_ties_with_the_match_is_not_semi_hard(value):
    part = objectives.build("triplet", mining="semi_hard")
    assert part(torch.full((4, 4), value), torch.eye(4, dtype=torch.bool)).total == 0


def test_what_is_no_tensor_is_named():
    part = objectives.build("triplet")
    with pytest.raises(PolysemError, match="got list"):
        part([[1.0]], torch.eye(1, dtype=torch.bool))
    with pytest.raises(PolysemError, match="got list"):
        part(torch.rand(1, 1), [[True]])
    with pytest.raises(PolysemError, match="'a'"):
        part.set_epoch("a")
