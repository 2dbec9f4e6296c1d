import pytest

from polysem.training import optimiser
from training.small import assembled, make_data, tiny


def rates(recipe, data):
    model = assembled(recipe, data)[0]
    return model, {group["name"]: group["lr"] for group in optimiser.build(model, recipe.optimiser).param_groups}


def test_every_weight_is_in_one_group(tmp_path):
    model, _ = rates(tiny("dive"), make_data(tmp_path))
    groups = optimiser.named_groups(model, tiny("dive").optimiser)
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


def test_a_place_must_match_whole_words():
    assert optimiser.scale_of("text.setsuna", {"text.sets": 0.1}) == 1.0
    assert optimiser.scale_of("text.sets", {"text.sets": 0.1}) == 0.1


def test_a_learned_similarity_has_a_group(tmp_path):
    _, found = rates(tiny("dive-mp", "similarity.learnable=true"), make_data(tmp_path))
    assert "similarity" in found


def test_an_encoders_own_scale_holds_for_its_body(tmp_path):
    _, found = rates(tiny("vse-infty", "text.encoder.lr_scale=0.1"), make_data(tmp_path))
    assert found["text.encoder.body"] == pytest.approx(5e-5)
