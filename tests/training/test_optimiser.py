import math

import pytest

from polysem.recipes.schema import Schedule
from polysem.training import optimiser
from polysem.training.optimiser import is_warming, loss_factor, lr_factor
from training.small import assembled, make_data, tiny


def rates(recipe, data):
    model = assembled(recipe, data)[0]
    return model, {
        group["name"]: group["lr"] for group in optimiser.build_optimiser(model, recipe.optimiser).param_groups
    }


def test_every_weight_is_in_one_group(tmp_path):
    model, _ = rates(tiny("dive"), make_data(tmp_path))
    groups = optimiser.build_optimiser(model, tiny("dive").optimiser).param_groups
    listed = [id(p) for group in groups for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in model.parameters())


def test_dive_slows_the_image_side_and_the_text_slots(tmp_path):
    _, found = rates(tiny("dive"), make_data(tmp_path))
    assert found["image.encoder.body"] == found["image.sets"] == found["text.sets"] == pytest.approx(1e-4)
    assert found["text.encoder.body"] == pytest.approx(1e-3)


def test_the_longest_place_decides(tmp_path):
    recipe = tiny("dive", "optimiser.lr_scales={text: 0.5, text.sets: 0.1}")
    _, found = rates(recipe, make_data(tmp_path))
    assert found["text.sets"] == pytest.approx(1e-4)
    assert found["text.encoder.body"] == pytest.approx(5e-4)
    assert found["image.sets"] == pytest.approx(1e-4)  # the recipe's own scale stays


def test_a_place_must_match_whole_words(tmp_path):
    recipe = tiny("dive", "optimiser.lr=1e-3")
    scales = recipe.optimiser.model_copy(update={"lr_scales": {"text.set": 0.5, "text.encoder": 0.1}})
    _, found = rates(recipe.model_copy(update={"optimiser": scales}), make_data(tmp_path))
    assert found["text.sets"] == pytest.approx(1e-3)
    assert found["text.encoder.body"] == pytest.approx(1e-4)


def test_a_learned_similarity_has_a_group(tmp_path):
    _, found = rates(tiny("dive-mp", "similarity.learnable=true"), make_data(tmp_path))
    assert "similarity" in found


def test_an_encoders_own_scale_holds_for_its_body(tmp_path):
    _, found = rates(tiny("vse-infty", "text.encoder.lr_scale=0.1"), make_data(tmp_path))
    assert found["text.encoder.body"] == pytest.approx(5e-5)


# ---------------------------------------------------------------------------------------------------------- schedule


def at(schedule: Schedule, epoch: float, per_epoch: int = 10, epochs: int = 30) -> float:
    return lr_factor(schedule, int(epoch * per_epoch), per_epoch, per_epoch * epochs)


def test_step_at_milestones():
    schedule = Schedule(name="step", milestones=[15, 20])
    assert [at(schedule, epoch) for epoch in (0, 14.9, 15, 19.9)] == pytest.approx([1, 1, 0.1, 0.1])
    assert at(schedule, 25) == pytest.approx(0.01)


def test_step_every_so_many_epochs():
    assert [at(Schedule(name="step", every=10), epoch) for epoch in (9, 10, 29)] == pytest.approx([1, 0.1, 0.01])


def test_the_released_vse_2ad_schedule_compounds():
    """The rates that its code was seen to use: 5e-4, 5e-5, 5e-6, 5e-7 in epochs 14 to 17 and 5e-14 in epoch 24."""
    schedule = Schedule(name="compounding", every=15)
    found = [5e-4 * at(schedule, epoch) for epoch in (14, 15, 16, 17, 24)]
    assert found == pytest.approx([5e-4, 5e-5, 5e-6, 5e-7, 5e-14])


def test_cosine_ends_at_nothing():
    schedule = Schedule(name="cosine")
    assert lr_factor(schedule, 0, 10, 100) == 1
    assert lr_factor(schedule, 50, 10, 100) == pytest.approx(0.5)
    assert lr_factor(schedule, 25, 10, 100) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert lr_factor(schedule, 100, 10, 100) == pytest.approx(0)


def test_warm_up_rises_to_the_full_rate_and_never_starts_at_zero():
    schedule = Schedule(name="constant", warmup_steps=4)
    assert [lr_factor(schedule, step, 10, 100) for step in range(6)] == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])
    assert [is_warming(schedule, step, 10) for step in (0, 3, 4)] == [True, True, False]


def test_the_ramp_of_an_epoch_is_of_the_rate_or_of_the_loss():
    rate = Schedule(ramp_epoch=1)
    loss = Schedule(ramp_epoch=1, ramp="loss")
    assert [lr_factor(rate, step, 10, 100) for step in (9, 10, 15, 20)] == pytest.approx([1, 0, 0.5, 1])
    assert [loss_factor(rate, step, 10) for step in (9, 10, 15)] == [1, 1, 1]
    assert [lr_factor(loss, step, 10, 100) for step in (9, 10, 15)] == [1, 1, 1]
    assert [loss_factor(loss, step, 10) for step in (9, 10, 15, 20)] == pytest.approx([1, 0, 0.5, 1])
