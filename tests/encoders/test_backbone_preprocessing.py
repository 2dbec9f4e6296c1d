"""Pretrained vision backbones: their own numbers, their own pixels, and what they refuse."""

import json

import pytest
import torch
import transformers

from encoders import tiny_models
from polysem import PolysemError, encoders


def pixels(encoder, items=2):
    size = encoder.image_size
    return torch.randn(items, 3, size, size, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("family", tiny_models.GRIDS)
def test_a_grid_is_the_models_own_last_feature_map(build, saved, family):
    encoder = build(family)
    states = transformers.AutoModel.from_pretrained(saved(family)).eval()(pixels(encoder)).last_hidden_state
    expected = states.flatten(2).transpose(1, 2) if states.ndim == 4 else states
    torch.testing.assert_close(encoder(pixels(encoder)).values, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", tiny_models.PATCHES)
def test_patches_are_the_models_own_last_states_without_registers(build, saved, family):
    encoder = build(family)
    model = transformers.AutoModel.from_pretrained(saved(family)).eval()
    states = getattr(model, "vision_model", model)(pixels(encoder)).last_hidden_state
    registers = {"dinov2_with_registers": 3, "dinov3": 2}.get(family, 0)
    expected = torch.cat([states[:, :1], states[:, 1 + registers :]], dim=1)
    torch.testing.assert_close(encoder(pixels(encoder)).values, expected, atol=1e-5, rtol=1e-5)
    assert encoder(pixels(encoder)).values.shape[1] == 16 + (family != "siglip")


@pytest.mark.parametrize("family", tiny_models.PATCHES)
def test_another_picture_size_interpolates_the_positions(build, family):
    encoder = build(family, image_size=48)
    assert encoder(pixels(encoder)).values.shape[1] == len(encoder.places()) == 36 + encoder.has_cls


def test_pictures_that_do_not_divide_into_patches_are_refused(build):
    with pytest.raises(PolysemError, match="not a multiple of the patch size 8"):
        build("vit", image_size=36)


@pytest.mark.slow
@pytest.mark.parametrize("family", tiny_models.DETECTORS)
def test_the_surest_regions_come_first_with_their_boxes(build, family):
    encoder = build(family)
    found = encoder.detect(pixels(encoder))
    assert found.features.values.shape == (2, 4, 16)
    assert found.boxes.shape == (2, 4, 4)
    assert found.scores.shape == (2, 4)
    assert (found.scores[:, 1:] <= found.scores[:, :-1]).all()
    assert found.boxes.min() >= 0
    assert found.boxes.max() <= 1
    assert (found.boxes[..., 2:] >= found.boxes[..., :2]).all()
    assert torch.equal(encoder(pixels(encoder)).values, found.features.values)
    assert encoder.tokens_per_item == found.features.values.shape[1]


@pytest.mark.parametrize("family", ["detr", "rt_detr", "d_fine"])
def test_regions_are_the_detectors_own_queries(build, saved, family):
    encoder = build(family)
    model = transformers.AutoModelForObjectDetection.from_pretrained(saved(family)).eval()
    own = model(pixels(encoder))
    scores = own.logits.softmax(-1)[..., :-1] if family == "detr" else own.logits.sigmoid()
    for item in range(2):
        best = scores[item].max(-1).values.argsort(descending=True)[:4]
        found = encoder.detect(pixels(encoder))
        torch.testing.assert_close(found.features.values[item], own.last_hidden_state[item, best], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.scores[item], scores[item, best].max(-1).values, atol=1e-5, rtol=1e-5)
        x, y, w, h = own.pred_boxes[item, best].unbind(-1)
        corners = torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], dim=-1).clamp(0, 1)
        torch.testing.assert_close(found.boxes[item], corners, atol=1e-5, rtol=1e-5)


def test_more_regions_than_queries_are_refused(build):
    with pytest.raises(PolysemError, match="at most 9"):
        build("detr", regions=10)
    with pytest.raises(PolysemError, match="at most 16"):
        build("owlvit", regions=17)


def test_a_timm_backbone_is_refused_with_the_way_out(tmp_path):
    transformers.DetrConfig().save_pretrained(tmp_path)
    with pytest.raises(PolysemError, match="@no_timm"):
        encoders.build("detector", model=str(tmp_path))


@pytest.mark.parametrize(
    ("encoder", "family", "message"),
    [
        ("patch", "resnet", "Give ViT"),
        ("patch", "bert", "cannot read a 'bert'"),
        ("detector", "vit", "Give DETR"),
    ],
)
def test_a_model_of_another_kind_is_refused(saved, encoder, family, message):
    with pytest.raises(PolysemError, match=message):
        encoders.build(encoder, model=str(saved(family)))


@pytest.mark.parametrize("shape", [(2, 3, 32, 31), (2, 1, 32, 32), (3, 32, 32), (0, 3, 32, 32)])
def test_pixels_of_another_shape_are_refused(build, shape):
    for family in ("resnet", "vit", "detr"):
        with pytest.raises(PolysemError, match=r"\(items, 3, 32, 32\)"):
            build(family)(torch.zeros(shape))


def test_the_pixels_a_model_was_trained_on_are_read_from_its_folder(saved, tmp_path):
    transformers.ViTModel.from_pretrained(saved("vit")).save_pretrained(tmp_path)
    about = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "size": {"shortest_edge": 40}, "resample": 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(about))
    seen = encoders.build("patch", model=str(tmp_path)).preprocessing
    assert (seen.mean, seen.std, seen.size, seen.interpolation) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 40, "bicubic")
    said = encoders.build("patch", model=str(tmp_path), image_size=32, std=[1.0, 1.0, 1.0], interpolation="bilinear")
    assert (said.preprocessing.size, said.preprocessing.std) == (32, (1.0, 1.0, 1.0))
    assert encoders.build(**said.config).preprocessing == said.preprocessing


def test_without_such_a_file_each_family_has_its_habit(build):
    assert build("vit").preprocessing.mean == (0.5, 0.5, 0.5)
    assert build("rt_detr").preprocessing.std == (1.0, 1.0, 1.0)
    assert build("resnet").preprocessing.mean == (0.485, 0.456, 0.406)
    assert build("clip").preprocessing.mean[0] == pytest.approx(0.48145466)
