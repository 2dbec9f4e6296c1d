"""Pictures to pixels."""

import numpy as np
import pytest
import torch
from PIL import Image

from polysem import PolysemError
from polysem.encoders.preprocessing import Preprocessing, to_rgb


def preprocessing(**changes):
    knobs = {"size": 8, "resize": "stretch", "mean": (0.5,) * 3, "std": (0.25,) * 3, "interpolation": "bilinear"}
    return Preprocessing(**{**knobs, **changes})


def test_pixels_are_normalised_channel_by_channel():
    pixels = preprocessing(mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 1.0)).pixels(Image.new("RGB", (30, 20), (255, 0, 51)))
    assert pixels.shape == (3, 8, 8)
    assert pixels.dtype == torch.float32
    torch.testing.assert_close(pixels[:, 3, 4], torch.tensor([1.0, -1.0, 0.2]))


def test_stretch_shows_the_whole_picture_and_crop_its_middle():
    plain = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    wide = Image.new("RGB", (40, 10), "black")
    wide.paste("white", (0, 0, 10, 10))  # the left quarter
    assert preprocessing(**plain).pixels(wide)[0, 0, 0] == 1
    assert preprocessing(**plain, resize="crop").pixels(wide).max() == 0


def test_the_same_picture_gives_the_same_pixels():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (31, 47, 3), dtype=np.uint8))
    assert torch.equal(preprocessing().pixels(image), preprocessing().pixels(image.copy()))


@pytest.mark.parametrize("mode", ["L", "1", "P", "CMYK", "YCbCr", "HSV", "LA", "RGBA"])
def test_pictures_of_any_mode_become_rgb(mode):
    grey = Image.new("RGB", (20, 20), (90, 90, 90)).convert(mode)
    pixels = preprocessing(mean=(0.0,) * 3, std=(1.0,) * 3).pixels(grey)
    assert pixels.shape == (3, 8, 8)
    if mode != "1":  # black and white alone cannot hold it
        torch.testing.assert_close(pixels, torch.full((3, 8, 8), 90 / 255), atol=0.03, rtol=0)


def test_what_is_transparent_becomes_white():
    assert to_rgb(Image.new("RGBA", (2, 2), (0, 0, 0, 0))).getpixel((0, 0)) == (255, 255, 255)
    palette = Image.new("P", (2, 2), 0)
    palette.info["transparency"] = 0
    assert to_rgb(palette).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("given", [None, "photo.jpg", np.zeros((4, 4, 3)), torch.zeros(3, 4, 4)])
def test_what_is_no_picture_is_refused(given):
    with pytest.raises(PolysemError, match="PIL image"):
        preprocessing().pixels(given)


def test_a_picture_without_pixels_is_refused():
    with pytest.raises(PolysemError, match="0 x 5"):
        preprocessing().pixels(Image.new("RGB", (0, 5)))


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1)])
def test_slivers_are_pictures_too(size):
    for resize in ("stretch", "crop"):
        pixels = preprocessing(resize=resize)
        assert pixels.pixels(Image.new("RGB", size)).isfinite().all()
        assert pixels.augment(Image.new("RGB", size), torch.Generator().manual_seed(0)).shape == (3, 8, 8)


def test_augmentation_depends_on_its_generator_alone():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (31, 47, 3), dtype=np.uint8))

    def draw(seed):
        return preprocessing().augment(image, torch.Generator().manual_seed(seed))

    torch.manual_seed(1)
    first = draw(7)
    torch.manual_seed(2)
    assert torch.equal(draw(7), first)
    assert not torch.equal(draw(8), first)


def test_augmentation_crops_between_sixty_percent_and_all_and_mirrors_half_the_time():
    # A ramp from left to right: its ends tell where the window lies and whether it is mirrored.
    ramp = Image.fromarray(np.tile(np.linspace(0, 255, 400, dtype=np.uint8), (300, 1)))
    seen = preprocessing(size=100, mean=(0.0,) * 3, std=(1.0,) * 3)
    generator = torch.Generator().manual_seed(0)
    rows = torch.stack([seen.augment(ramp, generator)[0, 50] for _ in range(300)])
    spans = (rows[:, -1] - rows[:, 0]).abs()
    assert spans.min() > 0.57
    assert spans.max() > 0.95
    assert 0.76 < spans.mean() < 0.84
    assert 0.4 < (rows[:, 0] > rows[:, -1]).float().mean() < 0.6
    assert rows.amin(1).std() > 0.02  # the window moves


def test_boxes_return_to_the_picture():
    box = torch.tensor([[0.0, 0.0, 0.5, 1.0]])
    assert preprocessing().on_picture(box, 40, 20).tolist() == box.tolist()
    assert preprocessing(resize="crop").on_picture(box, 40, 20).tolist() == [[0.25, 0.0, 0.5, 1.0]]
    assert preprocessing(resize="crop").on_picture(box, 20, 40).tolist() == [[0.0, 0.25, 0.5, 0.75]]
