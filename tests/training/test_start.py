"""Starting from a model: what is taken over, what is new, and that the result is never worse than the start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import polysem
from encoders.tiny_duals import save_dual
from polysem import models, recipes
from polysem.data import open_collection
from polysem.data.vocabulary import Vocabulary
from polysem.encoders.backbones import SourceError
from polysem.errors import ConfigError, InputError, PolysemError
from polysem.models import Model, import_checkpoint
from polysem.recipes import Recipe
from polysem.training import train
from polysem.training.build import build_model
from polysem.training.optimiser import build_optimiser
from polysem.training.run_folder import Checkpoints, read_metrics
from polysem.training.splits import split
from polysem.training.start import finetune_recipe, take_over
from sample_data import karpathy
from support import FIXTURES
from training.killed_runs import killed_after
from training.small import make_data, tiny, weights

ABSURD = ("optimiser.lr=10", "optimiser.clip=0.1", "schedule.name=constant")
"""Every step throws the weights far away; clipped, they stay finite."""
QUICK = ("training.epochs=1", "training.batch=6")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "toy")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    words = ("dog", "cat", "ball", "grass", "red", "blue")
    splits = ["train"] * 12 + ["val"] * 6
    captions = [[f"a {words[i % 6]} {words[i // 6]}", f"the {words[i % 6]} sits"] for i in range(18)]
    entries = [{"filename": f"{i}.png", "split": s, "captions": captions[i]} for i, s in enumerate(splits)]
    return karpathy(tmp_path_factory.mktemp("photos"), entries).parent


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    train(tiny("vse-infty", "training.epochs=8", "optimiser.lr=1e-2"), data, out, tracker=None)
    return out


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    return save_dual("clip", tmp_path_factory.mktemp("dual") / "clip")


def built(recipe: Recipe, data: Path, source: Model | None = None) -> Model:
    return build_model(recipe, split(open_collection(data), recipe.data).train, source)


def finetuned(start: Path, data: Path, out: Path, *overrides: str):
    return train(finetune_recipe(polysem.load(start), str(start), overrides), data, out, tracker=None)


def validations(run: Path) -> list[dict]:
    return [line for line in read_metrics(run / "metrics.jsonl") if line["kind"] == "validation"]


def equal(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    one, two = first.state_dict(), second.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_what_fits_is_taken_over_bit_by_bit_and_what_differs_is_named(data, trained):
    source = polysem.load(trained)
    model = built(tiny("vse-infty", "image.sets.pooling=mean", "training.seed=5"), data, source)
    assert not equal(model.text.encoder, source.text.encoder)
    report = take_over(model, source)
    for side in ("image", "text"):
        assert equal(getattr(model, side).encoder, getattr(source, side).encoder)
    assert model.text.encoder.vocabulary.entries == source.text.encoder.vocabulary.entries
    assert {"image.encoder", "text.encoder", "text.sets", "similarity"} == set(report.taken)
    assert set(report.new) == {"image.sets"}
    assert "in the start" in report.new["image.sets"]
    assert "image.sets (" in str(report)


def test_other_widths_are_new_and_the_report_says_both(data, trained):
    report = take_over(built(tiny("vse-infty", "dim=8"), data), polysem.load(trained))
    assert "(16, 10) in the start, (8, 10) here" in report.new["image.encoder"]
    assert not {"image.encoder", "text.encoder"} & set(report.taken)


def test_other_settings_of_a_part_that_fits_are_named(trained):
    config = polysem.load(trained).config
    sets = {**config["image"]["sets"], "knobs": {"temperature": 0.7}}
    config = {**config, "image": {**config["image"], "sets": sets}}
    report = take_over(models.build(**config), polysem.load(trained))
    assert not report.new
    assert "0.7" in report.changed["image.sets"]


def test_of_an_encoder_with_another_head_the_body_is_taken(clip):
    def build(dim: int) -> Model:
        sets = {"name": "single", "pooling": "mean"}
        image = {"encoder": {"name": "patch", "model": str(clip), "dim": dim}, "sets": sets}
        text = {"encoder": {"name": "transformer", "model": str(clip), "dim": dim}, "sets": sets}
        return models.build(dim, image, text, {"name": "cosine"})

    source, model = build(8), build(6)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(1.0)
    report = take_over(model, source)
    assert {"image.encoder.body", "text.encoder.body"} <= set(report.taken)
    assert "projection" in report.new["image.encoder"]
    assert equal(model.image.encoder.backbone, source.image.encoder.backbone)


@pytest.mark.slow
def test_the_start_is_validated_before_the_first_step(data, trained, tmp_path):
    finetuned(trained, data, tmp_path / "run", *QUICK)
    first = validations(tmp_path / "run")[0]
    earlier = json.loads((trained / "run.json").read_text())["best"]
    assert (first["step"], first["epoch"], first["best"]) == (0, -1, True)
    assert first["rsum"] == earlier["rsum"]
    says = [line["says"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if line["kind"] == "diagnosis"]
    assert any("Taken over: similarity, image.encoder" in each for each in says)


@pytest.mark.slow
def test_where_training_makes_it_worse_the_start_is_kept(data, trained, tmp_path):
    result = finetuned(trained, data, tmp_path / "run", *QUICK, *ABSURD)
    start, *later = [line["rsum"] for line in validations(tmp_path / "run")]
    assert max(later) < start
    assert (result.best["step"], result.best["rsum"]) == (0, start)
    kept, source = weights(tmp_path / "run"), weights(trained)
    assert kept.keys() == source.keys()
    assert all(torch.equal(kept[name], source[name]) for name in kept)


@pytest.mark.slow
def test_where_training_makes_it_better_the_result_is(data, tmp_path):
    train(tiny("vse-infty", "training.epochs=1"), data, tmp_path / "weak", tracker=None)
    start = polysem.load(tmp_path / "weak").provenance["validation"]["rsum"]
    better = "optimiser.lr=1e-2", "training.epochs=6", "training.batch=6"
    result = finetuned(tmp_path / "weak", data, tmp_path / "run", *better)
    assert result.best["rsum"] > start
    assert result.best["step"] > 0
    provenance = polysem.load(tmp_path / "run").provenance
    assert provenance["start"]["fingerprint"] == polysem.load(tmp_path / "weak").fingerprint()


@pytest.mark.slow
def test_a_killed_run_still_knows_its_start(data, trained, tmp_path):
    settings = "training.epochs=2", "training.batch=6", *ABSURD
    whole = finetuned(trained, data, tmp_path / "whole", *settings)
    with killed_after(5):  # after an epoch of four steps
        finetuned(trained, data, tmp_path / "run", *settings)
    result = finetuned(trained, data, tmp_path / "run", *settings)
    assert result.resumed_from == 4
    assert result.best == whole.best
    assert result.best["step"] == 0
    found = [(line["step"], line["rsum"]) for line in validations(tmp_path / "run")]
    assert found == [(line["step"], line["rsum"]) for line in validations(tmp_path / "whole")]
    with killed_after(0):  # before there is any checkpoint to resume from
        finetuned(trained, data, tmp_path / "early", *settings)
    assert finetuned(trained, data, tmp_path / "early", *settings).best == whole.best


@pytest.mark.slow
def test_a_run_is_not_resumed_from_another_start(data, trained, tmp_path):
    start = tmp_path / "start"
    polysem.load(trained).save(start)
    with killed_after(1):
        finetuned(start, data, tmp_path / "run", *QUICK)
    other = polysem.load(trained)
    with torch.no_grad():
        other.image.encoder.fc.bias.add_(1.0)
    other.save(start)
    with pytest.raises(InputError, match=r"another model .* than the one that this run began from"):
        finetuned(start, data, tmp_path / "run", *QUICK)


@pytest.mark.slow
def test_what_the_start_learned_from_is_remembered(data, trained, tmp_path):
    other = make_data(tmp_path / "other", train=12)
    for file in other.glob("*_ids.txt"):
        file.write_text(file.read_text().replace("train", "other").replace("dev", "elsewhere"))
    finetuned(trained, other, tmp_path / "run", *QUICK)
    own, start = (polysem.load(each).provenance["data"]["items"] for each in (tmp_path / "run", trained))
    assert set(start) < set(own)


def test_bodies_learn_at_a_tenth_of_the_rate_or_not_at_all(photos, clip):
    trains = "image.encoder.trainable=all", "text.encoder.trainable=none"
    assert "lr_scale" not in recipes.load("small-vse-infty", trains).image.encoder
    started = recipes.load("small-vse-infty", [*trains, "start=run"])
    assert started.image.encoder["lr_scale"] == started.text.encoder["lr_scale"] == 0.1
    own = [*trains, "start=run", "image.encoder.lr_scale=0.5"]
    assert recipes.load("small-vse-infty", own).image.encoder["lr_scale"] == 0.5
    by_place = [*trains, "start=run", "optimiser.lr_scales={image.encoder: 0.2}"]
    assert "lr_scale" not in recipes.load("small-vse-infty", by_place).image.encoder
    assert "lr_scale" not in recipes.load("vse-infty", ["start=run"]).text.encoder  # a bigru has no pretrained body
    frozen = finetune_recipe(polysem.load(clip), str(clip), ["image.encoder.trainable=none"])
    model = built(frozen, photos)
    assert not any(parameter.requires_grad for parameter in model.image.parameters())
    groups = {group["name"]: group["lr"] for group in build_optimiser(model, frozen.optimiser).param_groups}
    assert groups["text.encoder.body"] == pytest.approx(0.1 * frozen.optimiser.lr)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_of_a_dual_encoder_the_last_layers_and_projections_train(family, photos, tmp_path):
    folder = save_dual(family, tmp_path / family)
    recipe = finetune_recipe(polysem.load(folder), str(folder), [*QUICK, "optimiser.lr=1e-2"])
    model = built(recipe, photos)
    for side, projection in (("image", "visual_projection"), ("text", "text_projection")):
        body = getattr(model, side).encoder.body
        learning = {name for name, parameter in body.named_parameters() if parameter.requires_grad}
        assert any("layers.1." in name for name in learning)
        assert not any("layers.0." in name or "embeddings" in name for name in learning)
        if family == "clip":
            assert f"{projection}.weight" in learning
    result = train(recipe, photos, tmp_path / "run", tracker=None)
    assert validations(tmp_path / "run")[0]["step"] == 0
    tuned, start = polysem.load(tmp_path / "run"), polysem.load(folder)
    assert result.best["rsum"] >= validations(tmp_path / "run")[0]["rsum"]
    assert tuned.config["similarity"] == start.config["similarity"]
    assert tuned.encode_texts(["a red dog"]).shape == start.encode_texts(["a red dog"]).shape
    assert recipe.objective["temperature"] == pytest.approx(1 / start.similarity.config["logit_scale"])


def test_a_model_of_which_nothing_trains_is_refused(photos, clip, tmp_path):
    frozen = "image.encoder.trainable=none", "text.encoder.trainable=none"
    with pytest.raises(ConfigError, match="Nothing of this model trains"):
        finetuned(clip, photos, tmp_path / "run", *frozen)


@pytest.mark.slow
def test_a_joined_model_trains_all_its_members(photos, clip, tmp_path):
    def member(seed: int) -> Model:
        torch.manual_seed(seed)
        sets = {"name": "attention_pooling", "k": 1, "hidden": 8, "attention": 4}
        image = {"encoder": {"name": "patch", "model": str(clip), "trainable": "none"}, "sets": sets}
        text = {"encoder": {"name": "transformer", "model": str(clip), "trainable": "none"}, "sets": sets}
        return models.build(8, image, text, {"name": "cosine"})

    joined = models.join([member(0), member(1)])
    joined.save(tmp_path / "joined")
    settings = "training.epochs=4", "optimiser.lr=1e-2", "training.batch=6"
    model = built(finetune_recipe(joined, str(tmp_path / "joined"), settings), photos)
    assert all(parameter.requires_grad for parameter in model.image.sets.parameters())
    report = take_over(model, joined)
    assert not report.new
    assert equal(model, joined)
    result = finetuned(tmp_path / "joined", photos, tmp_path / "run", *settings)
    assert polysem.load(tmp_path / "run").set_sizes == (2, 2)
    assert result.best["rsum"] >= validations(tmp_path / "run")[0]["rsum"]


@pytest.mark.slow
def test_an_imported_checkpoint_goes_on(tmp_path):
    source = FIXTURES / "checkpoint_vse_infty_bigru.pth"
    model = import_checkpoint(source, "vse-infty")
    width = model.image.encoder.config["input_dim"]
    data = make_data(tmp_path / "data", dim=width)
    names = ["<pad>", "<start>", "<end>", "<unk>", *map(str, range(model.text.encoder.vocab_size - 4))]
    model.save(tmp_path / "without")
    with pytest.raises(ConfigError, match="vocabulary"):
        finetuned(tmp_path / "without", data, tmp_path / "run", *QUICK)
    import_checkpoint(source, "vse-infty", Vocabulary(names)).save(tmp_path / "with")
    result = finetuned(tmp_path / "with", data, tmp_path / "run", *QUICK)
    assert result.best["rsum"] >= validations(tmp_path / "run")[0]["rsum"]


@pytest.mark.parametrize(
    ("start", "error", "says"),
    [
        ("small-vse-infty", ConfigError, "is a recipe"),
        ("./nothing/here", SourceError, "no such folder"),
        ("empty", PolysemError, "config.json"),
    ],
)
def test_a_start_that_is_no_model(start, error, says, data, tmp_path):
    (tmp_path / "empty").mkdir()
    given = str(tmp_path / "empty") if start == "empty" else start
    with pytest.raises(error, match=says):
        train(tiny("vse-infty", f"start={given}"), data, tmp_path / "run", tracker=None)


def test_a_start_with_nothing_in_common_is_refused(data, clip, tmp_path):
    with pytest.raises(ConfigError, match=r"no weights that this recipe can use.*Taken over: similarity"):
        train(tiny("vse-infty", f"start={clip}"), data, tmp_path / "run", tracker=None)


@pytest.mark.slow
def test_a_frozen_part_never_changes_not_even_its_batch_norm(data, trained, tmp_path):
    places = "[text, image.encoder]"
    frozen = finetuned(trained, data, tmp_path / "run", "optimiser.lr=1e-1", *QUICK, f"optimiser.frozen={places}")
    assert frozen.status == "finished"
    last, source = Checkpoints(tmp_path / "run").load("last")[0], weights(trained)
    same = {name: torch.equal(last[f"model/{name}"], source[name]) for name in source if f"model/{name}" in last}
    assert all(equal for name, equal in same.items() if name.startswith(("text.", "image.encoder.")))
    assert not all(equal for name, equal in same.items() if name.startswith("image.sets."))


def test_places_that_are_not_there_cannot_be_frozen():
    with pytest.raises(PolysemError, match=r"optimiser\.frozen.*image\.set"):
        tiny("vse-infty", "optimiser.frozen=[image.set]")
    with pytest.raises(PolysemError, match=r"image\.sets\.base"):
        tiny("vse-infty", "optimiser.frozen=[image.sets.base]")
