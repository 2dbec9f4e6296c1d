"""CLIP and SigLIP wherever a model goes on the command line, without training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from tokenizers import Tokenizer
from typer.testing import CliRunner

import polysem
from encoders.tiny_duals import save_dual, save_gemma_tokenizer
from polysem.cli import app
from polysem.errors import PolysemError
from polysem.search import Index
from search.photos import make_photos
from server.running import client

TEXT = "a red dog"


def call(*arguments: object, fails: bool = False) -> Any:
    """The JSON that a command prints, or the error that it ends with."""
    done = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "160"})
    if fails:
        return done.exception
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


@pytest.fixture(scope="module", params=["clip", "siglip"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_dual(request.param, tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def index(model: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("index") / model.name
    call("index", photos, "--model", model, "--out", out, "--json")
    return out


def expected_matches(model: Path, images: list[Path], texts: list[str]) -> torch.Tensor | None:
    loaded = polysem.load(model)
    scores = loaded.similarity(loaded.encode_images(images), loaded.encode_texts(texts))
    return loaded.similarity.match_probabilities(scores)


def test_words_find_pictures(model: Path, index: Path) -> None:
    found = call("search", index, TEXT, "--k", 3, "--json")["items"]
    assert len(found) == 3
    matches = expected_matches(model, [Path(each["path"]) for each in found], [TEXT])
    if matches is None:
        assert model.name == "clip"
        assert [each["match"] for each in found] == [None] * 3
    else:
        assert [each["match"] for each in found] == pytest.approx(matches[:, 0].tolist(), abs=1e-5)
    shown = call("search", index, TEXT, "--k", 3)
    assert ("match" in shown) == ("%" in shown) == (model.name == "siglip")


def test_pictures_find_texts_and_pictures(model: Path, index: Path, photos: Path) -> None:
    picture = min(photos.rglob("*.png"))
    texts = call("search", index, "--image", picture, "--find", "texts", "--json")["items"]
    assert (texts[0]["match"] is None) == (model.name == "clip")
    alike = call("search", index, "--image", picture, "--json")["items"]
    assert alike[0]["score"] == pytest.approx(1, abs=1e-4)
    assert alike[0]["match"] is None  # two pictures
    more = call("search", index, "--item", alike[0]["id"], "--json")["items"]
    assert alike[0]["id"] not in [each["id"] for each in more]


def test_the_server_gives_the_same(model: Path, index: Path) -> None:
    loaded = polysem.load(model)
    with Index.open(index, model=loaded) as opened:
        expected = opened.search(TEXT, k=2)
    with client(index, loaded) as server:
        check_server(server, expected)


def check_server(server: TestClient, expected: Any) -> None:
    found = server.get("/api/v1/search", params={"q": TEXT, "k": 2}).json()["results"]
    assert [each["id"] for each in found] == expected.ids
    assert [each["match"] for each in found] == pytest.approx([each.match for each in expected], abs=1e-5)
    told = server.post("/api/v1/explain", json={"item": found[0]["id"], "text": TEXT}).json()
    assert told["how"] == "score"
    assert told["match"] == pytest.approx(found[0]["match"], abs=1e-4)
    cells = np.array(told["elements"][0]["attention"]["values"])
    assert cells.shape == (4, 4)
    assert cells.min() >= 0
    assert cells.max() > 0


def test_it_is_measured_and_compared(model: Path, photos: Path) -> None:
    measured = call("eval", model, "--data", photos, "--json")
    assert "rsum" in json.dumps(measured).lower()
    compared = call("compare", model, model, "--data", photos)
    assert compared.count(model.name) >= 2


def test_it_has_a_cost(model: Path) -> None:
    (report,) = call("cost", model, "--queries", 4, "--gallery", 6, "--repeats", 1, "--json")["models"]
    assert report["set_sizes"] == [1, 1]


def test_it_is_explained(model: Path, photos: Path, tmp_path: Path) -> None:
    picture, out = min(photos.rglob("*.png")), tmp_path / "why.png"
    said = call("explain", model, picture, TEXT, "--out", out)
    assert out.stat().st_size > 0
    assert ("match" in said) == (model.name == "siglip")
    told = call("explain", model, picture, TEXT, "--json")
    assert told["image_weights"]["how"] == told["text_weights"]["how"] == "omission"
    assert told["image_weights"]["places"]["grid"] == [4, 4]
    assert len(set(told["image_weights"]["weights"][0][0])) > 4  # not the same everywhere


def test_it_is_exported(model: Path, tmp_path: Path) -> None:
    assert call("export", model, "--out", tmp_path / "onnx", "--json")["max_difference"] < 1e-5
    described = json.loads((tmp_path / "onnx" / "polysem_export.json").read_text())
    assert described["image"]["preprocessing"]["processor"]["image_mean"]
    assert described["similarity"]["logit_scale"] > 0


def test_an_exported_tokenizer_writes_small_for_siglip(tmp_path: Path) -> None:
    folder = save_dual("siglip", tmp_path / "siglip2")
    save_gemma_tokenizer(folder)
    call("export", folder, "--out", tmp_path / "onnx", "--json")
    tokenizer = Tokenizer.from_file(str(tmp_path / "onnx" / "tokenizer.json"))
    encoder: Any = polysem.load(folder).text.encoder
    assert tokenizer.encode("A Dog!").ids == encoder.tokenize(["A Dog!"]).ids[0].tolist()


def test_a_graph_has_no_place_for_pictures_of_any_shape(tmp_path: Path) -> None:
    refused = call("export", save_dual("siglip2", tmp_path / "naflex"), "--out", tmp_path / "onnx", fails=True)
    assert isinstance(refused, PolysemError)
    assert "its own proportions" in str(refused)


def test_imported_it_serves_the_same_index(model: Path, index: Path, tmp_path: Path) -> None:
    source = shutil.copytree(model, tmp_path / "source")
    told = call("import", source, "--from", "transformers", "--out", tmp_path / "mine", "--json")
    named = {part["place"]: part["part"] for part in told["parts"]}
    assert named["image.sets"] == named["text.sets"] == "global_feature"  # as the documentation has it
    assert told["imported"]["family"] == model.name
    assert told["texts"] == "sentences"
    shutil.rmtree(source)
    found = call("search", index, TEXT, "--model", tmp_path / "mine", "--json")["items"]
    assert found == call("search", index, TEXT, "--json")["items"]


def test_it_is_joined_with_its_like_and_no_other(model: Path, tmp_path: Path) -> None:
    assert call("join", model, model, "--out", tmp_path / "both", "--json")["set_sizes"] == [2, 2]
    refused = call("join", model, save_dual("altclip", tmp_path / "other"), "--out", tmp_path / "no", fails=True)
    assert isinstance(refused, PolysemError)
    assert "each has a space of its own" in str(refused)


def test_its_space_is_mapped_and_diagnosed(model: Path, photos: Path, index: Path, tmp_path: Path) -> None:
    call("map", index, "--out", tmp_path / "map.png")
    assert (tmp_path / "map.png").is_file()
    assert call("diagnose", model, "--data", photos, "--json")["verdicts"]


def test_features_are_extracted_once_and_indexed(model: Path, photos: Path, index: Path, tmp_path: Path) -> None:
    knob = f"model={model}"
    call("features", photos, "--encoder", "dual_image", "--set", knob, "--dtype", "float32", "--out", tmp_path / "f")
    call("index", photos, "--model", model, "--features", tmp_path / "f", "--out", tmp_path / "index", "--json")
    found = call("search", tmp_path / "index", TEXT, "--json")["items"]
    direct = call("search", index, TEXT, "--json")["items"]
    assert [each["id"] for each in found] == [each["id"] for each in direct]
    assert [each["score"] for each in found] == pytest.approx([each["score"] for each in direct], abs=1e-5)
