"""What models cost: counts by hand, times by a clock that the test turns."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from encoders.tiny_duals import save_dual
from polysem import models, recipes, similarity
from polysem.encoders import SourceError
from polysem.errors import InputError, UnknownNameError
from polysem.evaluation.cost import Cost, Timing, build_untrained, cost, find_model, median_times, random_features
from polysem.models import Model

WORDS, WORD_DIM, REGION = 20, 6, 10


def single(dim: int = 8) -> Model:
    sets = {"name": "single", "pooling": "mean"}
    return _model(dim, {"name": "region", "form": "linear", "input_dim": REGION}, sets, {"name": "cosine"})


def fourfold(dim: int = 8, form: str = "chamfer", k: int = 4) -> Model:
    sets = {"name": "slots", "k": k, "heads": 2, "head_dim": 4, "ff_mult": 2}
    image = {"name": "region", "form": "linear", "input_dim": REGION}
    return _model(dim, image, sets, {"name": form}, pool={"name": "max"})


def _model(dim: int, encoder: dict, sets: dict, compared: dict, pool: dict | None = None) -> Model:
    image = {"encoder": encoder, "pool": pool, "sets": sets}
    text = {"encoder": {"name": "bigru", "vocab_size": WORDS, "word_dim": WORD_DIM}, "sets": sets}
    return models.build(dim, image, text, compared).eval()


def quick(**given: Model) -> dict[str, Cost]:
    return {entry.name: entry for entry in cost(given, gallery=(12, 30), repeats=1)}


# --------------------------------------------------------------------------------------------------------------- FLOPs

# After the six inner products of sets of two and three.
BY_HAND = {
    "mil": ({"name": "mil"}, 5),  # comparisons
    "chamfer": ({"name": "chamfer"}, (2 * 2 + 3 * 1) + (2 + 3) + 2),  # maxima, means of 2 and of 3, the mean of both
    "smooth_chamfer": (
        {"name": "smooth_chamfer"},
        6 + 6 + (2 * 2 + 3 * 1) + (2 + 3) + (2 + 3) + 2,  # alpha, exp, sums, logs, means, sum and 1 / (2 alpha)
    ),
    "smooth_chamfer-euclidean": ({"name": "smooth_chamfer", "metric": "euclidean"}, 31 + 6 * 5),
    # For each of three: alpha, exp and product of two, two sums and their quotient; then the mean.
    "soft_maximum": ({"name": "soft_maximum"}, 3 * (2 + 2 + 2 + 1 + 1 + 1) + 3),
    "match_probability": ({"name": "match_probability"}, 6 * 3 + 6),  # scale, shift, sigmoid; mean
    "match_probability-pcme": ({"name": "match_probability", "form": "pcme"}, 6 * 4 + 6 + 6 * 6),
}


@pytest.mark.parametrize("setting", BY_HAND)
def test_flops_of_sets_of_two_and_three_are_as_counted_by_hand(setting: str) -> None:
    config, after = BY_HAND[setting]
    assert similarity.build(**config).flops(2, 3, 5) == 2 * 6 * 5 + after


def test_every_similarity_counts_its_flops() -> None:
    assert {config["name"] for config, _ in BY_HAND.values()} == set(similarity.names()) - {"cosine"}
    assert similarity.build("cosine").flops(1, 1, 1024) == 2048


@pytest.mark.parametrize("name", similarity.names())
def test_four_vectors_cost_sixteen_times_one_as_dive_prints(name: str) -> None:
    one = similarity.build("cosine").flops(1, 1, 1024)
    sizes = (1, 1) if name == "cosine" else (4, 4)
    expected = 1 if name == "cosine" else 16
    assert similarity.build(name).flops(*sizes, 1024) / one == pytest.approx(expected, rel=0.01)


# ----------------------------------------------------------------------------------------------------- the comparison


def test_the_first_single_vector_model_is_the_reference() -> None:
    found = quick(sets=fourfold(), first=single(), second=single(16))
    assert list(found) == ["sets", "first", "second"]
    assert [entry.name for entry in found.values() if entry.is_reference] == ["first"]
    relative = found["first"].relative
    assert set(asdict(relative).values()) == {1.0}
    assert found["second"].relative.flops == 2
    assert found["sets"].relative.bytes == 4


def test_without_a_single_vector_model_a_single_vector_is_measured_in_the_same_run() -> None:
    found = quick(wide=fourfold(16), narrow=fourfold(8))
    assert list(found) == ["single vector (D=16)", "wide", "narrow"]
    bare = found["single vector (D=16)"]
    assert bare.is_reference
    assert (bare.similarity, bare.set_sizes, bare.flops) == ("cosine", (1, 1), 32)
    assert (bare.parameters, bare.items_per_second, bare.oips, bare.relative.parameters) == (None, None, None, None)
    assert found["wide"].relative.flops == pytest.approx(16, rel=0.1)
    assert found["wide"].relative.parameters is None


def test_sets_on_one_side_alone_make_no_single_vector_model() -> None:
    model = fourfold(form="mil", k=3)
    model.text = single().text
    found = quick(lopsided=model)
    assert found["lopsided"].set_sizes == (3, 1)
    assert not found["lopsided"].is_reference
    assert found["lopsided"].image_bytes.float32 == 3 * found["lopsided"].text_bytes.float32


def test_bytes_and_parameters_are_as_counted_by_hand() -> None:
    entry = quick(model=single())["model"]
    assert (entry.image_bytes.float32, entry.image_bytes.float16) == (32, 16)
    found = entry.parameters
    assert found is not None
    gru = 2 * (3 * 8 * (WORD_DIM + 8) + 2 * 3 * 8)
    assert (found.image_encoder, found.image_heads) == (REGION * 8 + 8, 0)
    assert (found.text_encoder, found.text_heads) == (WORDS * WORD_DIM + gru, 0)
    assert found.total == found.trainable == found.image_encoder + found.text_encoder


def test_frozen_and_shared_parameters_are_told_apart() -> None:
    model = fourfold()
    model.text.sets = model.image.sets
    model.image.encoder.freeze()
    found = quick(model=model)["model"].parameters
    assert found is not None
    assert found.image_heads == found.text_heads > 0
    assert found.total == found.image_encoder + found.text_encoder + found.image_heads
    assert found.total - found.trainable == found.image_encoder


def test_times_are_positive_and_the_slowest_encoder_is_one() -> None:
    found = quick(single=single(), sets=fourfold())
    for entry in found.values():
        assert min(entry.image_to_text.wall, entry.text_to_image.wall) > 0
        assert entry.items_per_second is not None
        assert entry.items_per_second > 0
    assert min(entry.oips or 0.0 for entry in found.values()) == 1
    assert max(entry.oips or 0.0 for entry in found.values()) > 1


def test_search_takes_as_many_queries_and_items_as_asked_for_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    model, shapes = fourfold(), []
    scores = model.similarity.scores

    def spy(images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        assert torch.allclose(images.norm(dim=-1), torch.ones(images.shape[:2]))
        shapes.append((tuple(images.shape), tuple(texts.shape)))
        return scores(images, texts)

    monkeypatch.setattr(model.similarity, "scores", spy)
    cost({"model": model}, gallery=(12, 30), repeats=2)
    assert shapes == [((12, 4, 8), (30, 4, 8)), ((30, 4, 8), (12, 4, 8))] * 3  # one round warms up


def test_a_gallery_smaller_than_the_top_is_searched_too() -> None:
    assert cost({"model": single()}, gallery=(2, 3), repeats=1)[0].image_to_text.wall > 0


def test_a_model_is_left_as_it_was() -> None:
    model = fourfold().train()
    before = model.fingerprint()
    quick(model=model)
    assert model.training
    assert model.fingerprint() == before


def test_costs_are_plain_data() -> None:
    found = cost({"sets": fourfold()}, gallery=(3, 4), repeats=1)
    assert json.loads(json.dumps([asdict(entry) for entry in found]))[1]["set_sizes"] == [4, 4]


@pytest.mark.parametrize(("gallery", "repeats"), [((0, 5), 1), ((5, 0), 1), ((5, 5), 0)])
def test_nothing_to_measure_is_an_error(gallery: tuple[int, int], repeats: int) -> None:
    with pytest.raises(InputError, match="at least one"):
        cost({"model": single()}, gallery, repeats)


def test_no_model_is_an_error() -> None:
    with pytest.raises(InputError, match="no model"):
        cost({})


# ------------------------------------------------------------------------------------------------------------- timing


def test_medians_are_taken_round_by_round_without_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = [0.0], []

    def task(name: str, seconds: list[float]):
        def run() -> None:
            order.append(name)
            clock[0] += seconds.pop(0)

        return run

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(time, "process_time", lambda: 2 * clock[0])
    seen: list[tuple[int, int]] = []
    tasks = {"a": task("a", [99.0, 1.0, 5.0, 2.0]), "b": task("b", [99.0, 4.0, 4.0, 70.0])}
    found = median_times(tasks, 3, lambda _, done, total: seen.append((done, total)))
    assert order == ["a", "b"] * 4
    assert found == {"a": Timing(2, 4), "b": Timing(4, 8)}
    assert seen == [(done, 8) for done in range(1, 9)]


# ---------------------------------------------------------------------------------------------------- finding a model


def test_a_folder_gives_its_model(tmp_path: Path) -> None:
    model = single()
    model.save(tmp_path / "mine")
    assert find_model(str(tmp_path / "mine")).fingerprint() == model.fingerprint()


def test_a_recipe_gives_an_untrained_model_and_says_what_it_assumed(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: vse-infty\ndim: 8\ntext: {encoder: {word_dim: 4}}\n", encoding="utf-8")
    model = find_model(str(path))
    assert not model.training
    assert model.provenance["assumed"] == {"image.encoder.input_dim": 2048, "text.encoder.vocab_size": 10_000}
    assert quick(model=model)["model"].assumed == model.provenance["assumed"]


def test_what_a_recipe_says_is_not_assumed() -> None:
    recipe = recipes.load("vse-infty", ["dim=8", "image.encoder.input_dim=12", "text.encoder.vocab_size=9"])
    model = build_untrained(recipe)
    assert model.provenance["assumed"] == {}
    assert model.text.encoder.config["vocab_size"] == 9


def test_an_unknown_model_names_the_recipes_that_exist() -> None:
    with pytest.raises(UnknownNameError, match="'smal-dive' is not the folder of a model") as told:
        find_model("smal-dive")
    assert "Did you mean 'small-dive'?" in str(told.value)
    assert "vse-infty-video" in str(told.value)


def test_a_folder_without_a_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(models.ModelFolderError, match=r"there is no config\.json"):
        find_model(str(tmp_path))


def test_a_folder_of_a_recipes_name_gives_way_unless_it_holds_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("vse-infty").mkdir()
    assert find_model("vse-infty").dim == 1024
    single().save("vse-infty")
    assert find_model("vse-infty").dim == 8


def test_a_recipe_whose_network_is_out_of_reach_asks_for_a_trained_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: True)
    recipe = recipes.load("vse-infty-grid-bigru", ["image.encoder.model=nobody/no-such-network"])
    with pytest.raises(SourceError, match=r"vse-infty-grid-bigru cannot be built.*Or give a model trained by it\."):
        build_untrained(recipe)


def test_a_name_on_the_hub_is_loaded_like_any_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: True)
    with pytest.raises(SourceError, match=r"'nobody/no-such-model'.*not cached, and HF_HUB_OFFLINE is set"):
        find_model("nobody/no-such-model")


def test_a_dual_encoder_has_a_cost(tmp_path: Path) -> None:
    model = find_model(str(save_dual("clip", tmp_path / "clip")))
    assert random_features(model.image, 3).summary.shape == (3, 12)
    measured = quick(clip=model)["clip"]
    assert (measured.set_sizes, measured.dim, measured.is_reference) == ((1, 1), 12, True)
    assert measured.parameters.total == sum(p.numel() for p in model.parameters())


def test_features_have_the_shape_that_the_encoder_makes_or_takes() -> None:
    assert random_features(single().image, 3).values.shape == (3, 36, REGION)
    lite = {"name": "grid", "pretrained": False, "image_size": 64}
    model = _model(8, lite, {"name": "single", "pooling": "mean"}, {"name": "cosine"})
    made = model.image.encoder(torch.zeros(2, 3, 64, 64))
    features = random_features(model.image, 2)
    assert features.values.shape == made.values.shape
    assert model.encode_images(features).shape == (2, 1, 8)
