"""Dual encoders are explained by hiding patches of the picture and leaving out words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import polysem
from encoders.test_dual import pictures
from encoders.tiny_duals import save_dual
from polysem import encoders
from polysem.inspection import explain, image_attentions, text_attentions
from polysem.models import Model

FAMILIES = ["clip", "siglip", "siglip2", "chinese_clip"]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return polysem.load(save_dual(request.param, tmp_path_factory.mktemp(request.param)))


@torch.no_grad()
def test_a_patch_weighs_what_hiding_it_changes(model: Model) -> None:
    picture = pictures()[0]
    found = next(image_attentions(model, [picture]))
    encoder = model.image.encoder
    assert isinstance(encoder, encoders.DualImage)
    pixels = encoder.preprocess(picture)
    rows, columns = encoder.patch_grid(pixels)
    assert found.how == "omission"
    assert found.hidden_together == 1
    assert found.weights.shape == (1, 1, rows * columns + encoder.has_cls)
    changes = []
    for patch in range(rows * columns):
        copy = pixels.clone()
        high, wide = pixels.shape[1] // rows, pixels.shape[2] // columns
        y, x = high * (patch // columns), wide * (patch % columns)
        copy[:, y : y + high, x : x + wide] = 0
        changes.append(1 - torch.cosine_similarity(model.image(copy[None]).vectors[0, 0], found.vectors[0], dim=0))
    change = torch.stack(changes)
    weights = found.weights[0, 0, 1:] if encoder.has_cls else found.weights[0, 0]
    torch.testing.assert_close(weights, change / change.sum(), atol=2e-3, rtol=0)
    assert weights.std() > 0
    if encoder.has_cls:
        assert found.weights[0, 0, 0] == 0


def test_many_patches_are_hidden_several_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = polysem.load(save_dual("siglip", tmp_path))
    monkeypatch.setattr("polysem.inspection.attention._BLOCKS_ACROSS", (2, 4))
    assert next(image_attentions(model, pictures()[:1])).hidden_together == 1
    monkeypatch.setattr("polysem.inspection.attention._OCCLUSION_FLOPS", 1.0)  # as if it were a huge one
    found = next(image_attentions(model, pictures()[:1]))
    assert found.hidden_together == 2
    cells = found.weights[0, 0].view(4, 4)
    blocks = cells.unfold(0, 2, 2).unfold(1, 2, 2).flatten(2)
    assert torch.equal(blocks.amax(-1), blocks.amin(-1))
    assert len(blocks.unique()) == 4
    assert float(cells.sum()) == pytest.approx(1)


def test_start_and_end_of_a_text_are_not_left_out(model: Model) -> None:
    found = next(text_attentions(model, ["a red dog"]))
    assert found.how == "omission"
    assert found.weights[0, 0, 0] == found.weights[0, 0, -1] == 0
    assert bool((found.weights[0, 0, 1:-1] > 0).all())


@torch.no_grad()
def test_an_explanation_says_how_far_the_score_falls(model: Model, tmp_path: Path) -> None:
    picture = pictures()[0]
    found = explain(model, picture, "a red dog", out=tmp_path / "why.png")
    assert found.image.without is not None
    caption = model.encode_texts(["a red dog"])
    expected = found.score - model.similarity(found.image.without, caption)[:, 0]
    torch.testing.assert_close(found.image_drops, expected, atol=1e-5, rtol=0)
    without = model.encode_texts(["a red"])
    drop = found.score - float(model.similarity(model.encode_images([picture]), without))
    assert found.text_drops is not None
    assert float(found.text_drops[3]) == pytest.approx(drop, abs=1e-5)
    told = found.as_dict()
    rows, columns = told["image_weights"]["places"]["grid"]
    assert rows * columns == sum(box is not None for box in told["image_weights"]["places"]["boxes"])
    assert len(told["image_weights"]["score_drops"]) == len(told["image_weights"]["weights"][0][0])
    assert (told["match"] is None) == (model.similarity.config["logit_bias"] is None)
