"""The map lights up tokens the picture was painted: every backbone family, any aspect ratio."""

from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image

from encoders import tiny_models
from inspection.small_models import make_model
from polysem import PolysemError, encoders
from polysem.data.store import FeatureManifest
from polysem.inspection import image_attentions, locate_regions, locate_stored_tokens, locate_tokens

pytestmark = pytest.mark.slow

FAMILIES = [*tiny_models.GRIDS, *tiny_models.PATCHES, "efficientnet-lite0", "grids"]
SIZES = [(96, 96), (160, 60), (60, 160)]
CORNERS = [(0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.5, 0.5)]


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    @cache
    def folder(family):
        return str(tiny_models.save(family, tmp_path_factory.mktemp(family)))

    def make(family, **knobs):
        if family.startswith("efficientnet"):
            return encoders.build("grid", model=family, pretrained=False, image_size=256, **knobs).eval()
        if family == "grids":
            networks = [folder("resnet"), folder("regnet")]
            return encoders.build("grids", models=networks, sizes=[192, 256], cells=4, **knobs).eval()
        if family in tiny_models.GRIDS and family != "swin":
            knobs = {"image_size": 256, **knobs}
        else:
            knobs = {**tiny_models.KNOBS.get(family, {}), **knobs}
        return encoders.build(tiny_models.ENCODER[family], model=folder(family), **knobs).eval()

    return make


def picture(size, corner=None, whole=False):
    """A grey picture; one quarter of it, or all, is painted in patches of many colours."""
    width, height = size
    pixels = np.full((height, width, 3), 128, np.uint8)
    blobs = np.random.default_rng(0).integers(0, 2, (max(size) // 4 + 1, max(size) // 4 + 1, 3)) * 255
    noise = blobs.repeat(4, 0).repeat(4, 1)[:height, :width].astype(np.uint8)
    if whole:
        pixels[:] = noise
    elif corner is not None:
        x, y = round(corner[0] * width), round(corner[1] * height)
        part = np.s_[y : y + round(height / 2), x : x + round(width / 2)]
        pixels[part] = noise[part]
    return Image.fromarray(pixels)


@torch.no_grad()
def looking_for_paint(encoder):
    """A model whose one element attends to what tells a painted picture from a blank one. It learns that from whole
    pictures, so that nothing it knows says tokens a token lies."""
    model = make_model("pie_net-one", "single-mean", "cosine", encoder)
    painted, blank = (
        encoder(encoder.preprocess(picture((96, 96), whole=whole))[None]).values[0] for whole in (True, False)
    )
    towards = painted.mean(0) - blank.mean(0)
    # small, so that the tanh is nearly straight; then stretched until painted and blank are far apart
    model.image.sets.w_1.weight.copy_(1e-3 * towards / towards.norm())
    model.image.sets.w_2.weight.fill_(6e3 / towards.norm())
    return model


@pytest.mark.parametrize("resize", ["stretch", "crop"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_map_lights_up_in_the_painted_corner(build, family, resize):
    encoder = build(family, resize=resize)
    model = looking_for_paint(encoder)
    for size in SIZES:
        tokens = locate_tokens(encoder, size)
        assert tokens.kind == "cells"
        inside_picture = tokens.boxes[tokens.located]
        assert inside_picture.min() >= 0
        assert bool((inside_picture[:, 2:] <= torch.tensor(size) + 1e-3).all())
        blank, *found = image_attentions(model, [picture(size), *(picture(size, corner) for corner in CORNERS)])
        for corner, attention in zip(CORNERS, found, strict=True):
            lit = (attention.last[0] / blank.last[0])[tokens.located]
            centres, half = tokens.centres[tokens.located], torch.tensor(size) / 2
            quarters = [
                ((centres > half * 2 * torch.tensor(at)) & (centres < half * (2 * torch.tensor(at) + 1))).all(1)
                for at in CORNERS
            ]
            assert [int(quarter.sum()) for quarter in quarters] == [len(lit) / 4] * 4
            brightness = torch.stack([lit[quarter].mean() for quarter in quarters])
            painted = CORNERS.index(corner)
            others = brightness[[place for place in range(4) if place != painted]]
            assert brightness[painted] > 1.5 * others.max(), (size, corner)


@pytest.mark.parametrize("family", tiny_models.PATCHES)
def test_a_class_token_has_no_place_and_registers_are_no_tokens(build, family):
    encoder = build(family)
    tokens = locate_tokens(encoder, (64, 32))
    assert len(tokens) == encoder(torch.zeros(1, 3, 32, 32)).values.shape[1]
    assert tokens.located.sum() == 16
    assert bool(tokens.located[0]) == (not encoder.has_cls)
    laid_out = tokens.as_map(torch.arange(len(tokens)).float())
    assert laid_out.shape == (4, 4)
    assert laid_out[0, 1] - laid_out[0, 0] == 1  # along a row first


@pytest.mark.parametrize("size", [(100, 100), (200, 100), (90, 210)])
@pytest.mark.parametrize("resize", ["stretch", "crop"])
def test_regions_lie_where_the_detector_found_them(build, size, resize):
    encoder = build("detr", resize=resize)
    shown = picture(size, (0.5, 0.0))
    tokens = locate_tokens(encoder, shown)
    found = encoder.detect(encoder.preprocess(shown)[None]).boxes[0].detach()
    width, height = size
    side = min(size) if resize == "crop" else 0
    for box, (x0, y0, x1, y1) in zip(tokens.boxes.tolist(), found.tolist(), strict=True):
        if resize == "crop":
            left, top = (width - side) / 2, (height - side) / 2
            expected = [left + x0 * side, top + y0 * side, left + x1 * side, top + y1 * side]
        else:
            expected = [x0 * width, y0 * height, x1 * width, y1 * height]
        assert box == pytest.approx(expected, abs=1e-2)
    with pytest.raises(PolysemError, match="give the image"):
        locate_tokens(encoder, size)
    with pytest.raises(PolysemError, match="Draw the boxes"):
        tokens.as_map(torch.ones(len(tokens)))


@pytest.mark.parametrize("family", ["resnet", "grids", "vit", "siglip"])
def test_a_store_tells_the_places_of_its_features(build, family):
    encoder = build(family, resize="crop")
    manifest = FeatureManifest("toy", "f", encoder.dim, encoder=dict(encoder.config))
    expected = locate_tokens(encoder, (300, 200))
    found = locate_stored_tokens(manifest, len(expected), (300, 200))
    torch.testing.assert_close(found.boxes, expected.boxes, equal_nan=True)
    assert found.grid == expected.grid
    with pytest.raises(PolysemError, match="not a square"):
        locate_stored_tokens(manifest, 7, (300, 200))


def test_features_that_nobody_placed():
    region = encoders.build("region", input_dim=8, dim=4)
    assert locate_tokens(region, (10, 10), 36).kind == "unknown"
    assert locate_tokens(encoders.build("frames", input_dim=8), (10, 10), 5).kind == "frames"
    detector = FeatureManifest("toy", "f", 8, encoder={"name": "detector"})
    assert locate_stored_tokens(detector, 36, (10, 10)).kind == "unknown"
    given = locate_regions(np.array([[0, 0, 5, 5], [2, 2, 9, 9]]), (10, 10))
    assert (given.kind, given.centres.tolist()) == ("boxes", [[2.5, 2.5], [5.5, 5.5]])
    with pytest.raises(PolysemError, match="how many"):
        locate_tokens(region, (10, 10))
    with pytest.raises(PolysemError, match="x0, y0, x1, y1"):
        locate_regions(np.ones((3, 5)), (10, 10))
    with pytest.raises(PolysemError, match=r"5\.0, 5\.0, 2\.0, 2\.0"):
        locate_regions([[5, 5, 2, 2]], (10, 10))
