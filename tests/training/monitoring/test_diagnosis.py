import json
import math
import re
from dataclasses import replace
from functools import cache

import pytest
import torch

from polysem import objectives, recipes
from polysem.training.monitoring import diagnosis
from polysem.training.monitoring.diagnosis import (
    StepFacts,
    TrainingMonitor,
    circular_variance,
    collapsed_loss,
    gradient_shares,
)
from support import unit
from training.monitoring.toy_runs import diagnose, facts_of_run

run = cache(facts_of_run)

NOISE = {"signal": False, "fixed": False, "batch": 16, "lr": 0.01}
HINGE_COLLAPSE = {"steps": 200, "seed": 1, **NOISE}
INFONCE_COLLAPSE = {"objective": "infonce", "steps": 160, **NOISE}
ADOPT_COLLAPSE = {"objective": "adopt", "steps": 160, **NOISE}
UNTRAINED = {"score": "mil", "k": 4, "favour": 8.0, "steps": 160, "batch": 16, "fixed": False}
ALIKE = {"objective": "infonce", "k": 4, "apart": 0.01, "steps": 160, "batch": 16}
EXPLODING = {"lr": 3.0, "steps": 40, "batch": 16}


def quiet(step: int, **changes: object) -> StepFacts:
    """A step of a sound run."""
    facts = StepFacts(
        step=step, loss=1.0, collapsed_loss=3.0, collapse="chance", grad_norm=1.0, score_spread=0.1,
        norms={"image": 4.0, "text": 4.0}, lr=5e-4,
    )  # fmt: skip
    return replace(facts, **changes)


# ------------------------------------------------------------------------------------------------- what is measured


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("mining", ["hardest", "semi_hard"])
def test_a_collapsed_hinge_costs_the_margin_for_every_pair_both_ways(mining, reduction):
    part = objectives.build("triplet", margin=0.3, mining=mining, reduction=reduction)
    scores, eye = unit(16, 8) @ unit(16, 8, seed=1).t(), torch.eye(16, dtype=torch.bool)
    # Of nearly equal scores about half lie below the match, and those are the semi-hard ones.
    terms = {("hardest", "sum"): 32, ("semi_hard", "sum"): 16 * 15}.get((mining, reduction), 2)
    assert collapsed_loss(part, scores, eye) == pytest.approx(0.3 * terms, rel=0.1 if terms > 32 else 1e-3)


def test_a_collapsed_infonce_costs_the_logarithm_of_the_batch():
    scores, eye = unit(16, 8) @ unit(16, 8, seed=1).t(), torch.eye(16, dtype=torch.bool)
    assert collapsed_loss(objectives.build("infonce"), scores, eye) == pytest.approx(math.log(16))
    assert collapsed_loss(objectives.build("adopt"), scores, eye) == pytest.approx(math.log(16))


def test_measuring_a_collapse_leaves_the_schedule_and_the_generator_alone_and_draws_what_the_loss_will_draw():
    part = objectives.build("adopt", k="random")
    part.set_epoch(3)
    scores, eye = torch.zeros(64, 64), torch.eye(64, dtype=torch.bool)
    for _ in range(5):
        before = torch.get_rng_state()
        expected = collapsed_loss(part, scores.requires_grad_(), eye)
        assert torch.equal(torch.get_rng_state(), before)
        assert float(part(scores, eye).total.detach()) == pytest.approx(expected)
    assert part.epoch == 3


def test_circular_variance_is_0_for_one_vector_and_1_for_opposite_ones():
    one = unit(5, 1, 8).expand(5, 4, 8)
    assert circular_variance(one) == pytest.approx(0, abs=1e-6)
    assert circular_variance(torch.cat([one, -3 * one], dim=1)) == pytest.approx(1)
    orthogonal = torch.eye(4)[None]
    assert circular_variance(orthogonal) == pytest.approx(0.5)


def test_supervision_is_each_elements_share_of_the_gradient():
    gradient = torch.zeros(3, 4, 2)
    gradient[:, 1, 0], gradient[:, 2, 1] = 3.0, -1.0
    assert gradient_shares(gradient) == pytest.approx((0, 0.75, 0.25, 0))
    assert gradient_shares(torch.zeros(3, 2, 2)) == (0.0, 0.0)


# ------------------------------------------------------------------------------------------------ runs that go wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "name", "within"),
    [
        (HINGE_COLLAPSE, "hinge collapse", 200),
        (INFONCE_COLLAPSE, "InfoNCE collapse", 160),
        (ADOPT_COLLAPSE, "InfoNCE collapse", 160),
        (UNTRAINED, "untrained elements", 160),
        (ALIKE, "set collapse", 160),
        (EXPLODING, "exploding norms", 20),
    ],
    ids=["hinge", "infonce", "adopt", "untrained", "alike", "exploding"],
)
def test_a_run_that_goes_wrong_is_named_in_time_and_for_nothing_else(settings, name, within):
    found = diagnose(run(**settings))
    assert {finding.name for finding in found} == {name}
    assert found[0].step <= within


def test_a_finding_names_the_side_the_elements_and_the_numbers():
    found = diagnose(run(**UNTRAINED))
    image = next(finding for finding in found if "image" in finding.says)
    assert re.search(
        r"3 got almost no share .*element 2 \(\d.\d%\), element 3 \(.*element 4 \(.*even share is 25%", image.says
    )
    assert "--set image.sets.k=1" in image.advice
    (hinge,) = diagnose(run(**HINGE_COLLAPSE))
    assert "6.4" in hinge.says  # 2 * 16 * 0.2


def test_constant_embeddings_are_a_collapse_whatever_the_objective_makes_of_them():
    steps = [quiet(i, collapse=None, loss=0.0, collapsed_loss=1.0, score_spread=0.0) for i in range(1, 200)]
    (found,) = diagnose(steps)
    assert (found.name, found.step) == ("score collapse", diagnosis.GRACE + diagnosis.PATIENCE)


@pytest.mark.parametrize("field", ["loss", "grad_norm", "norms", "score_spread"])
def test_what_is_not_finite_is_named_at_once(field):
    nan, inf = ({"image": value, "text": 4.0} if field == "norms" else value for value in (math.nan, math.inf))
    steps = [quiet(i) for i in range(1, 10)] + [quiet(10, **{field: nan})] + [quiet(11, **{field: inf})]
    (found,) = diagnose(steps)
    assert (found.name, found.step) == ("exploding norms", 10)
    assert "nan" in found.says
    assert "--set optimiser.lr=5e-05" in found.advice


def test_an_exploding_gradient_is_named_after_three_steps_and_one_bad_batch_is_not():
    sound = [quiet(i) for i in range(1, 30)]
    assert diagnose([*sound, quiet(30, grad_norm=1e4), *(quiet(i) for i in range(31, 60))]) == []
    (found,) = diagnose([*sound, *(quiet(i, grad_norm=1e4) for i in range(30, 60))])
    assert (found.name, found.step) == ("exploding norms", 32)


def test_the_advice_is_a_command_that_the_recipes_take():
    runs = [
        ("small-vse++", run(**HINGE_COLLAPSE)),
        ("small-vse-2ad", run(**INFONCE_COLLAPSE)),
        ("small-pvse", run(**ALIKE)),
        ("small-dive-mil", run(**UNTRAINED)),
        ("small-vse++", run(**EXPLODING)),
    ]
    for recipe, facts in runs:
        for finding in diagnose([replace(step, lr=5e-4) for step in facts]):
            settings = re.findall(r"--set ([\w.]+=(?:'[^']*'|[^\s',;:)]*[^\s',;:).]))", finding.advice)
            assert settings
            recipes.load(recipe, [setting.replace("'", "") for setting in settings])


# -------------------------------------------------------------------------------------------------- runs that do not


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lr": 0.03, "seed": 1},
        {"mining": [[0, "all"], [1, "hardest"]], "k": 4},
        {"mining": "semi_hard", "reduction": "mean", "seed": 1},
        {"objective": "infonce", "k": 4, "seed": 1},
        {"objective": "infonce", "lr": 1e-3},
        {"objective": "adopt", "k": 4},
        {"objective": "adopt", "variant": "official", "seed": 1},
    ],
    ids=str,
)
def test_a_sound_run_is_left_in_peace(settings):
    facts = facts_of_run(**{"steps": 155, "batch": 16, **settings})
    assert facts[-1].loss < 0.5 * facts[-1].collapsed_loss
    assert diagnose(facts) == []


def test_a_hinge_that_hovers_at_its_constant_with_its_scores_apart_is_left_in_peace():
    steps = [quiet(i, collapse="hinge", loss=51.5, collapsed_loss=51.2, score_spread=0.02) for i in range(1, 400)]
    assert diagnose(steps) == []


def test_a_hinge_whose_triplets_are_all_satisfied_may_meet_a_hard_one():
    steps = [quiet(i, grad_norm=5.0) for i in range(1, 20)] + [quiet(i, grad_norm=0.0) for i in range(20, 300)]
    assert diagnose([*steps, *(quiet(i, grad_norm=4.0) for i in range(300, 310))]) == []


def test_standing_still_while_the_learning_rate_rises_is_no_symptom():
    stuck = {"loss": 3.0, "score_spread": 0.005}
    steps = [quiet(i, warming=i <= 400, **stuck) for i in range(1, 550)]
    (found,) = diagnose(steps)
    assert found.step == 400 + diagnosis.PATIENCE


# ------------------------------------------------------------------------------------------------------------ memory


def test_a_finding_comes_once_and_again_only_after_it_has_passed():
    stuck, sound = {"loss": 3.0, "score_spread": 0.005}, {}
    phases = [stuck] * 400 + [sound] * 200 + [stuck] * 200
    found = diagnose([quiet(i, **phase) for i, phase in enumerate(phases, 1)])
    assert [finding.name for finding in found] == ["InfoNCE collapse"] * 2
    assert found[0].step == 150
    assert 600 < found[1].step <= 750


@pytest.mark.parametrize("settings", [HINGE_COLLAPSE, UNTRAINED, ALIKE, EXPLODING], ids=["hinge", "mil", "alike", "lr"])
def test_a_resumed_run_finds_what_the_uninterrupted_one_does(settings):
    facts = run(**settings)
    straight = diagnose(facts)
    assert straight
    for cut in range(0, len(facts), 29):
        first, second = TrainingMonitor(), TrainingMonitor()
        found = [finding for step in facts[:cut] for finding in first.observe(step)]
        second.restore(json.loads(json.dumps(first.state(), allow_nan=False)))
        found += [finding for step in facts[cut:] for finding in second.observe(step)]
        assert found == straight


def test_the_state_is_a_copy():
    monitor = TrainingMonitor()
    monitor.observe(quiet(1))
    state = json.dumps(before := monitor.state())
    monitor.observe(quiet(2))
    assert json.dumps(before) == state
