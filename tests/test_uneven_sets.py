"""Sets of eight for an image and of one for a text, from the recipe to the page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import polysem
from encoders import tiny_models
from polysem.cli import app
from polysem.inspection import explain
from search.photos import save
from server.running import client

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 40, 220), "grey": (128, 128, 128)}
WORDS = ("a {} picture", "something {}")
RECIPE = """
summary: readings that compete, on small networks
dim: 16
image:
  encoder: {{name: grid, model: {resnet}, image_size: 64, trainable: none}}
  sets: {{name: competing_readings, k: 8, cells: {cells}, hidden: 6}}
text:
  encoder: {{name: bigru, word_dim: 8}}
  sets: {{name: competing_readings, k: 1, hidden: 6}}
similarity: {{name: soft_maximum, alpha: 16}}
objective: {{name: infonce}}
optimiser: {{name: adamw, lr: 1e-2}}
data: {{min_count: 1}}
training: {{epochs: 2, batch: 6, captions: 2}}
"""

pytestmark = pytest.mark.slow


def make_pictures(folder: Path) -> Path:
    folder.mkdir()
    rng, rows = np.random.default_rng(0), []
    for split, count in (("train", 3), ("val", 1), ("test", 1)):
        for number in range(count):
            for name, colour in COLOURS.items():
                save(folder / f"{name}-{split}-{number}.png", colour, rng)
                for text in WORDS:
                    file = f"{name}-{split}-{number}.png"
                    rows.append({"image": file, "caption": f"{text.format(name)} {number}", "split": split})
    (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder


def call(*arguments: object) -> str:
    found = CliRunner().invoke(app, list(map(str, arguments)))
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("data") / "pictures")


@pytest.fixture(scope="module")
def run(tmp_path_factory, data):
    """A trained model, by the command line."""
    folder = tmp_path_factory.mktemp("uneven")
    tiny_models.save("resnet", folder / "resnet")
    cells = polysem.encoders.build("grid", model=str(folder / "resnet"), image_size=64).tokens_per_item
    (folder / "sets.yaml").write_text(RECIPE.format(resnet=folder / "resnet", cells=cells))
    call("train", folder / "sets.yaml", "--data", data, "--out", folder / "run", "--tracker", "none")
    return folder / "run"


def test_it_trains_validates_and_is_measured(run, data):
    model = polysem.load(run)
    assert model.set_sizes == (8, 1)
    measured = json.loads(call("eval", run, "--data", data, "--split", "test", "--json"))
    assert "rsum" in json.dumps(measured)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("variance" in json.dumps(line) for line in lines)  # of images alone: texts have one vector
    call("compare", run, run, "--data", data, "--split", "test")
    call("cost", run)
    call("diagnose", run, "--data", data, "--split", "test", "--out", run / "diagnosis.html")


def test_it_is_indexed_searched_explained_and_served(run, data, tmp_path):
    call("index", data, "--model", run, "--out", tmp_path / "index")
    model, picture = polysem.load(run), data / "red-test-0.png"
    with torch.no_grad():
        images, texts = model.encode_images([picture]), model.encode_texts(["a red picture 0"])
    expected = float(model.similarity(images, texts))
    for arguments, wanted in (
        (["a red picture 0", "--find", "image"], "red-test-0.png"),
        (["--image", picture, "--find", "text"], "red-test-0.png#0"),
    ):
        for mode in ("--exact", "--fast"):
            found = json.loads(call("search", tmp_path / "index", *arguments, mode, "--k", 50, "--json"))
            scores = {result["id"]: result["score"] for result in found["items"]}
            assert scores[wanted] == pytest.approx(expected, abs=1e-5)
    call("verify", tmp_path / "index")
    explanation = explain(model, picture, "a red picture 0")
    assert explanation.contributions.matrix.shape == (8, 1)
    assert float(explanation.contributions.matrix.sum()) == pytest.approx(expected, abs=1e-5)
    call("explain", run, picture, "a red picture 0", "--out", tmp_path / "why.png")
    with client(tmp_path / "index", model) as page:
        answer = page.post("/api/v1/explain", json={"item": "red-test-0.png", "text": "a red picture 0"}).json()
        assert np.shape(answer["contributions"]) == (8, 1)
        assert answer["score"] == pytest.approx(expected, abs=1e-5)
        assert page.get("/api/v1/model").status_code == 200
        alike = page.get("/api/v1/search", params={"item": "red-test-0.png", "k": 50}).json()["results"]
        assert len(alike) == 19


def test_it_is_exported(run, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    call("export", run, "--out", tmp_path / "onnx")
    images, texts = torch.randn(3, 8, 16), torch.randn(4, 1, 16)
    images, texts = (torch.nn.functional.normalize(x, dim=-1) for x in (images, texts))
    session = runtime.InferenceSession(tmp_path / "onnx" / "similarity.onnx")
    names = [given.name for given in session.get_inputs()]
    (scores,) = session.run(None, dict(zip(names, (images.numpy(), texts.numpy()), strict=True)))
    np.testing.assert_allclose(scores, polysem.load(run).similarity(images, texts).numpy(), atol=1e-5)
