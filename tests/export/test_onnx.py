"""A whole model as ONNX files, used as someone without polysem would use them."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from encoders import tiny_models
from polysem.cli import app
from polysem.data import Vocabulary
from polysem.errors import ConfigError, UnknownNameError
from polysem.export import ExportError, export_onnx
from polysem.models import build
from support import shaken

pytestmark = pytest.mark.slow

runtime = pytest.importorskip("onnxruntime")
tokenizers = pytest.importorskip("tokenizers")

DIM = 8
SENTENCES = ["a dog runs", "the big red ball and the small blue cat on the grass", "cat"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Pixels and sentences to sets of two."""
    folder = tmp_path_factory.mktemp("backbones")
    grid, bert = (str(tiny_models.save(family, folder / family)) for family in ("resnet", "bert"))
    sets = {"name": "slots", "k": 2, "heads": 2, "head_dim": 4, "ff_mult": 2, "iterations": 2}
    return shaken(
        build(
            DIM,
            {
                "encoder": {"name": "grid", "model": grid, "dim": DIM, "image_size": 32},
                "pool": {"name": "gpo"},
                "sets": sets,
            },
            {"encoder": {"name": "transformer", "model": bert, "dim": DIM}, "pool": {"name": "mean"}, "sets": sets},
            {"name": "smooth_chamfer"},
        )
    )


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    return export_onnx(model, tmp_path_factory.mktemp("exports") / "out")


def words_model(**image):
    text = {"encoder": {"name": "bigru", "vocab_size": 9, "dim": DIM, "word_dim": 4}, "sets": {"name": "summary"}}
    image = {"encoder": {"name": "region", "input_dim": 5, **image}, "sets": {"name": "single", "pooling": "mean"}}
    made = shaken(build(DIM, image, text, {"name": "cosine"}))
    made.text.encoder.vocabulary = Vocabulary.build(["a dog", "a cat"], min_count=1)
    return made


def described(exported):
    return json.loads((exported.out / "polysem_export.json").read_text(encoding="utf-8"))


def run(folder, side, *inputs):
    session = runtime.InferenceSession(folder / side["file"])
    return session.run(None, dict(zip([port["name"] for port in side["inputs"]], inputs, strict=True)))[0]


def test_the_files_alone_embed_and_score_as_the_model_does(model, exported):
    about = described(exported)
    picture = Image.effect_noise((50, 40), 90).convert("RGB")
    how = about["image"]["preprocessing"]
    assert (how["resize"], how["interpolation"]) == ("stretch", "bilinear")
    size = (how["size"], how["size"])
    pixels = np.asarray(picture.resize(size, Image.Resampling.BILINEAR, reducing_gap=how["reducing_gap"]), np.float32)
    pixels = ((pixels / 255 - np.float32(how["mean"])) / np.float32(how["std"])).transpose(2, 0, 1)[None]
    images = run(exported.out, about["image"], pixels)
    tokenizer = tokenizers.Tokenizer.from_file(str(exported.out / about["text"]["tokenizer"]["file"]))
    tokenizer.enable_padding()
    found = tokenizer.encode_batch(SENTENCES)
    ids, mask = (np.array([getattr(text, name) for text in found]) for name in ("ids", "attention_mask"))
    texts = run(exported.out, about["text"], ids, mask)
    scores = run(exported.out, about["similarity"], images, texts)
    np.testing.assert_allclose(images, model.encode_images([picture]).numpy(), atol=1e-5)
    np.testing.assert_allclose(texts, model.encode_texts(SENTENCES).numpy(), atol=1e-5)
    expected = model.similarity(torch.from_numpy(images), torch.from_numpy(texts)).detach().numpy()
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_the_description_says_what_was_measured(model, exported):
    about = described(exported)
    assert about["fingerprint"] == model.fingerprint()
    assert about["image"]["output"]["shape"] == ["batch", 2, DIM]
    measured = about["checked"]["towers"]["text"]
    assert measured["max_difference"] == exported.agreements["text"].difference <= exported.difference < 1e-5
    assert measured["batches"] >= 3
    assert set(exported.files) == {path.name for path in exported.out.iterdir()}


def test_a_model_of_features_and_words_brings_its_vocabulary(tmp_path):
    model = words_model()
    exported = export_onnx(model, tmp_path / "out")
    about = described(exported)
    ids = json.loads((exported.out / about["text"]["tokenizer"]["file"]).read_text(encoding="utf-8"))["word2idx"]
    sentence = np.array([[ids[word] for word in ("<start>", "a", "dog", "<end>")]])
    texts = run(exported.out, about["text"], sentence, np.ones_like(sentence))
    np.testing.assert_allclose(texts, model.encode_texts(["A dog"]).numpy(), atol=1e-5)
    regions = np.random.default_rng(0).normal(size=(1, 7, 5)).astype(np.float32)
    images = run(exported.out, about["image"], regions, np.ones((1, 7), np.int64))
    np.testing.assert_allclose(images, model.encode_images(regions).numpy(), atol=1e-5)
    assert about["image"]["preprocessing"] is None


def test_a_graph_that_differs_leaves_no_file_and_an_earlier_export_alone(tmp_path):
    out = tmp_path / "exports" / "out"
    with pytest.raises(ExportError, match=r"image tower \(region and single\).*differs from the model by up to"):
        export_onnx(words_model(), out, tolerance=1e-30)
    assert list(out.parent.iterdir()) == []
    export_onnx(words_model(), out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(ExportError, match="differs from the model"):
        export_onnx(words_model(), out, tolerance=1e-30)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_part_that_computes_otherwise_is_found_out(tmp_path):
    # BiT standardises its weights by a batch norm that the exporter writes down wrongly.
    grid = str(tiny_models.save("bit", tmp_path / "bit"))
    model = words_model()
    pixels = {"encoder": {"name": "grid", "model": grid, "dim": DIM, "image_size": 32}, "sets": {"name": "single"}}
    other = build(DIM, pixels, model.config["text"], {"name": "cosine"}).eval()
    with pytest.raises(ExportError, match=r"image tower \(grid and single\)"):
        export_onnx(other, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_of_the_users_is_not_replaced(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match="not an export of polysem's"):
        export_onnx(words_model(), tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_the_callers_model_stays_as_it_was(tmp_path):
    model = words_model().train().double()
    export_onnx(model, tmp_path / "out")
    assert model.training
    assert next(model.parameters()).dtype == torch.float64


def test_an_impossible_tolerance_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="tolerance must be a positive number"):
        export_onnx(words_model(), tmp_path / "out", tolerance=0.0)


def test_the_command_writes_and_tells(tmp_path):
    words_model().save(tmp_path / "model")
    arguments = ["export", str(tmp_path / "model"), "--format", "onnx", "--out", str(tmp_path / "out")]
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert told["max_difference"] < 1e-5
    assert (tmp_path / "out" / "image.onnx").stat().st_size == told["files"]["image.onnx"]
    shown = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    assert "Largest difference" in shown
    with pytest.raises(UnknownNameError, match="onnx"):
        CliRunner().invoke(app, [*arguments[:3], "tflite", *arguments[4:]], catch_exceptions=False)
