"""Models over a backbone of the catalogue: the hub's copy and the index's are one encoder, another is refused."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import Dinov2Model

import polysem
from polysem import encoders, models
from polysem.encoders.backbones import SourceError
from polysem.models.folder import CONFIG, WEIGHTS, ModelFolderError
from polysem.weights import CATALOGUE, WeightsEntry, WeightsError, dinov2, get_weights, probe
from weights.tiny_dinov2 import save_hub_copy, tiny_graph

IMAGE = {"name": "patch", "model": "tiny-dinov2", "grid": 2, "trainable": "none"}


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """An entry of the catalogue, an empty cache, folders with its graph, its hub copy and those of other networks."""
    monkeypatch.setenv("POLYSEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("polysem.weights.hub.reach_hub", _out_of_reach)
    folders = {name: tmp_path / name for name in ("graph", "hub", "nearly", "another")}
    folders["graph"].mkdir()
    tensors = tiny_graph(folders["graph"] / "tiny.onnx")
    dinov2.convert_graph(folders["graph"] / "tiny.onnx", tmp_path / "converted")
    network = Dinov2Model.from_pretrained(tmp_path / "converted")
    save_hub_copy(network, tensors, folders["hub"])
    content = (folders["graph"] / "tiny.onnx").read_bytes()
    record = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    package = {"name": "tiny-dinov2", "version": "1", "wheel_bytes": 9, "files": {"tiny/tiny.onnx": record}}
    entry = {"name": "tiny-dinov2", "provides": "", "kind": "image", "licence": "MIT", "convert": "dinov2"}
    answer = probe.ask(network, 224)
    monkeypatch.setitem(
        CATALOGUE,
        "tiny-dinov2",
        WeightsEntry.model_validate({**entry, "package": package, "hub": "nobody/tiny", "probe": answer}),
    )
    for name, noise in (("nearly", 1e-6), ("another", 0.05)):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(1 + noise * torch.randn_like(parameter))
        save_hub_copy(network, tensors, folders[name])
    return folders


def _out_of_reach(address):
    raise OSError("no route to the hub")


def make_model(**knobs):
    torch.manual_seed(0)
    sets = {"name": "single", "pooling": "mean"}
    text = {"encoder": {"name": "bigru", "vocab_size": 9, "dim": 8}, "sets": sets}
    image = {"encoder": {**IMAGE, **knobs}, "project": {"name": "region", "form": "linear"}, "sets": sets}
    return models.build(8, image, text, {"name": "cosine"}).eval()


def test_the_hubs_copy_and_the_indexs_copy_are_the_same_encoder(copies):
    fingerprints = set()
    for name in ("graph", "hub", "nearly"):
        get_weights("tiny-dinov2", copies[name])
        encoder = encoders.build(**IMAGE)
        fingerprints.add(encoder.fingerprint())
        assert encoder.fingerprint() != encoders.build(**IMAGE, resize="crop").fingerprint()
    assert len(fingerprints) == 1


def test_another_network_under_the_name_is_not_taken(copies):
    with pytest.raises(WeightsError, match=r"holds another network than tiny-dinov2.*probe picture"):
        get_weights("tiny-dinov2", copies["another"])
    assert not list((copies["hub"].parent / "cache").iterdir())


def test_a_backbone_that_changed_or_trains_counts_by_its_weights(copies):
    get_weights("tiny-dinov2", copies["graph"])
    encoder = encoders.build(**IMAGE)
    assert encoder.find_catalogue_weights() is not None
    before = encoder.fingerprint()
    with torch.no_grad():
        encoder.backbone.encoder.layer[0].mlp.fc1.weight.mul_(1.1)
    assert encoder.find_catalogue_weights() is None
    assert encoder.fingerprint() != before
    trains = encoders.build(**{**IMAGE, "trainable": "all"})
    assert trains.find_catalogue_weights() is None


def test_the_probe_is_asked_once_while_the_weights_stay(copies, monkeypatch):
    get_weights("tiny-dinov2", copies["graph"])
    encoder, asked = encoders.build(**IMAGE), []
    monkeypatch.setattr(probe, "ask", lambda *_, ask=probe.ask: asked.append(1) or ask(*_))
    assert encoder.train().fingerprint() == encoder.eval().fingerprint()
    assert len(asked) == 1


def test_a_model_folder_holds_the_heads_and_loads_with_whichever_copy_is_there(copies, tmp_path):
    get_weights("tiny-dinov2", copies["graph"])
    model = make_model()
    folder = model.save(tmp_path / "model")
    described = json.loads((folder / CONFIG).read_text())
    assert described["borrowed"] == ["image"]
    assert described["probe"] == {"image": list(CATALOGUE["tiny-dinov2"].probe)}
    assert not [name for name in load_file(folder / WEIGHTS) if name.startswith("image.encoder.")]
    pixels = torch.randn(2, 3, 224, 224)
    for copy, bound in (("graph", 0), ("hub", 0), ("nearly", 1e-3)):
        get_weights("tiny-dinov2", copies[copy])
        loaded = polysem.load(folder)
        assert loaded.fingerprint() == model.fingerprint()
        assert (loaded.image.encoder(pixels).values - model.image.encoder(pixels).values).abs().max() <= bound
    again = polysem.load(loaded.save(tmp_path / "again"))
    assert again.fingerprint() == model.fingerprint()


def test_a_model_is_refused_where_the_name_stands_for_another_network(copies, tmp_path, monkeypatch):
    get_weights("tiny-dinov2", copies["graph"])
    folder = make_model().save(tmp_path / "model")
    entry = CATALOGUE["tiny-dinov2"]
    monkeypatch.setitem(CATALOGUE, "tiny-dinov2", entry.model_copy(update={"probe": None}))
    get_weights("tiny-dinov2", copies["another"])
    monkeypatch.setitem(CATALOGUE, "tiny-dinov2", entry)
    with pytest.raises(ModelFolderError, match=r"other weights than those that are here as tiny-dinov2.*verify"):
        polysem.load(folder)


def test_without_the_weights_the_error_says_how_to_get_them(copies, tmp_path):
    get_weights("tiny-dinov2", copies["graph"])
    folder = make_model().save(tmp_path / "model")
    (tmp_path / "cache").rename(tmp_path / "away")
    with pytest.raises(SourceError, match="polysem weights get tiny-dinov2"):
        polysem.load(folder)


def test_trained_backbones_and_those_whose_source_went_away_are_kept_in_the_folder(copies, tmp_path):
    get_weights("tiny-dinov2", copies["graph"])
    trained, frozen = make_model(trainable="all"), make_model()
    with torch.no_grad():
        trained.image.encoder.backbone.layernorm.weight.add_(1e-7)
    (tmp_path / "cache").rename(tmp_path / "away")
    for number, model in enumerate((trained, frozen)):
        folder = model.save(tmp_path / str(number))
        assert "image.encoder.backbone.layernorm.weight" in load_file(folder / WEIGHTS)
        assert polysem.load(folder).fingerprint() == model.fingerprint()


def test_a_frozen_backbone_that_differs_in_a_bit_keeps_that_tensor(copies, tmp_path):
    get_weights("tiny-dinov2", copies["graph"])
    model = make_model()
    with torch.no_grad():
        model.image.encoder.backbone.layernorm.weight.mul_(1 + 1e-5)
    folder = model.save(tmp_path / "model")
    assert [name for name in load_file(folder / WEIGHTS) if "backbone" in name] == [
        "image.encoder.backbone.layernorm.weight"
    ]
    loaded = polysem.load(folder)
    assert torch.equal(loaded.image.encoder.backbone.layernorm.weight, model.image.encoder.backbone.layernorm.weight)


def test_damaged_weights_in_the_cache_name_the_command_that_checks_them(copies):
    place = get_weights("tiny-dinov2", copies["graph"])
    (place / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(SourceError, match="polysem weights verify tiny-dinov2"):
        encoders.build(**IMAGE)


def test_another_machines_cache_is_a_folder_to_take_them_from(copies, tmp_path, monkeypatch):
    place = get_weights("tiny-dinov2", copies["graph"])
    monkeypatch.setenv("POLYSEM_CACHE", str(tmp_path / "there"))
    again = get_weights("tiny-dinov2", place)
    assert again != place
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (place, again))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
