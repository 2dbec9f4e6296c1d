"""A token looks where its place says."""

import pytest
import torch

from encoders import tiny_models
from polysem import PolysemError, encoders

FAMILIES = [*tiny_models.GRIDS, *tiny_models.PATCHES]


def painted(size, box):
    x0, y0, x1, y1 = (round(float(edge) * size) for edge in box)
    pixels = torch.zeros(1, 3, size, size)
    pixels[..., y0:y1, x0:x1] = 2.0 * torch.randn(3, y1 - y0, x1 - x0)
    return pixels


def change(encoder, box):
    """How far each token moves when its picture is painted at this box."""
    size = encoder.image_size
    return (encoder(painted(size, box)).values - encoder(torch.zeros(1, 3, size, size)).values).norm(dim=-1)[0]


@pytest.mark.parametrize("family", [*tiny_models.PATCHES, "swin", "convnext"])
def test_the_token_whose_place_is_painted_changes_most(build, family):
    """The four corners and a cell off the diagonals, so that rows and columns cannot be swapped."""
    encoder = build(family)
    places, side, first = encoder.places(), encoder.side, int(getattr(encoder, "has_cls", False))
    assert side >= 4
    for row, column in [(0, 0), (0, side - 1), (side - 1, 0), (side - 1, side - 1), (0, side // 2)]:
        token = first + row * side + column
        assert change(encoder, places[token])[first:].argmax() == token - first


@pytest.mark.parametrize("family", tiny_models.GRIDS)
@pytest.mark.parametrize("corner", [(0, 0), (0.5, 0), (0, 0.5), (0.5, 0.5)])
def test_painting_a_quarter_of_the_picture_shows_in_that_quarter(build, family, corner):
    """A random convolution may answer loudest in a neighbouring cell, but not in another quarter of a large picture."""
    encoder = build(family, **({} if family == "swin" else {"image_size": 256}))
    places = encoder.places()
    assert places.shape == (encoder.side**2, 4)
    x, y = corner
    moved = change(encoder, (x, y, x + 0.5, y + 0.5))
    centres = (places[:, :2] + places[:, 2:]) / 2
    inside = ((centres > torch.tensor(corner)) & (centres < torch.tensor(corner) + 0.5)).all(1)
    assert inside.sum() == encoder.side**2 / 4
    assert inside[moved.argmax()]
    assert moved[inside].mean() > 1.5 * moved[~inside].mean()


@pytest.mark.parametrize("family", FAMILIES)
def test_places_tile_the_picture_row_by_row(build, family):
    encoder = build(family)
    places = encoder.places()
    if getattr(encoder, "has_cls", False):
        assert places[0].tolist() == [0, 0, 1, 1]
        places = places[1:]
    area = (places[:, 2] - places[:, 0]) * (places[:, 3] - places[:, 1])
    torch.testing.assert_close(area.sum(), torch.tensor(1.0))
    order = places[:, 1] * 1000 + places[:, 0]
    assert (order[1:] > order[:-1]).all()
    assert places.min() >= 0
    assert places.max() <= 1 + 1e-6


def test_places_follow_the_crop():
    encoder = encoders.build("grid", pretrained=False, image_size=64, resize="crop")
    assert encoder.places().tolist() == [[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]]
    # of a picture twice as wide as high only the middle half is seen
    assert encoder.places(200, 100)[1].tolist() == [0.5, 0, 0.75, 0.5]
    stretched = encoders.build("grid", pretrained=False, image_size=64)
    assert torch.equal(stretched.places(200, 100), stretched.places())


def test_a_class_token_is_kept_or_dropped(build):
    with_cls, without = build("vit"), build("vit", cls=False)
    pixels = torch.randn(2, 3, 32, 32)
    assert torch.equal(with_cls(pixels).values[:, 1:], without(pixels).values)
    assert (with_cls.has_cls, without.has_cls, build("siglip").has_cls) == (True, False, False)


def test_a_class_token_beside_every_patch(build):
    first, beside = build("vit"), build("vit", cls="beside")
    pixels = torch.randn(2, 3, 32, 32)
    tokens, joined = first(pixels).values, beside(pixels).values
    assert beside.dim == 2 * first.dim
    assert torch.equal(joined[..., : first.dim], tokens[:, 1:])
    assert torch.equal(joined[..., first.dim :], tokens[:, :1].expand_as(tokens[:, 1:]))
    assert len(beside.places()) == joined.shape[1]
    assert not beside.has_cls
    again = encoders.build(**beside.config)
    again.load_state_dict(beside.state_dict())
    assert torch.equal(again.eval()(pixels).values, joined)
    with pytest.raises(PolysemError, match=r"siglip.*no class token"):
        build("siglip", cls="beside")


def test_a_detector_has_no_fixed_places(build):
    with pytest.raises(PolysemError, match="detect"):
        build("detr").places()
