import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from polysem.data import ImageError, load_image
from sample_data import noise, picture


@pytest.mark.parametrize(
    ("mode", "colour", "suffix"),
    [
        ("L", 128, ".png"),
        ("1", 1, ".png"),
        ("LA", (128, 255), ".png"),
        ("P", 3, ".gif"),
        ("RGBA", (10, 20, 30, 255), ".png"),
        ("CMYK", (0, 255, 255, 0), ".jpg"),
        ("RGB", (10, 20, 30), ".webp"),
        ("I;16", 40_000, ".png"),
    ],
)
def test_every_mode_becomes_rgb(tmp_path, mode, colour, suffix):
    image = load_image(picture(tmp_path / f"x{suffix}", colour, mode=mode))
    assert image.mode == "RGB"
    assert image.size == (12, 8)


def test_cmyk_keeps_its_colour(tmp_path):
    red = load_image(picture(tmp_path / "x.jpg", (0, 255, 255, 0), mode="CMYK"))
    assert np.asarray(red)[0, 0] == pytest.approx([255, 0, 0], abs=12)


def test_transparency_lies_on_white(tmp_path):
    clear = load_image(picture(tmp_path / "x.png", (0, 0, 0, 0), mode="RGBA"))
    assert np.asarray(clear).min() == 255


def test_sixteen_bit_greyscale_is_scaled_not_clipped(tmp_path):
    levels = np.linspace(0, 60_000, 96, dtype=np.uint16).reshape(8, 12)
    Image.fromarray(levels).save(tmp_path / "x.png")
    seen = np.asarray(load_image(tmp_path / "x.png"))[..., 0].ravel()
    assert seen[0] == 0
    assert seen[-1] == 255
    assert len(set(seen.tolist())) > 50


def test_exif_rotation_is_applied(tmp_path):
    image = Image.new("RGB", (12, 8), "white")
    image.putpixel((0, 0), (0, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate 90° clockwise to see it upright
    image.save(tmp_path / "x.png", exif=exif)
    upright = load_image(tmp_path / "x.png")
    assert upright.size == (8, 12)
    assert upright.getpixel((7, 0)) == (0, 0, 0)


def test_an_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (12, 8), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    assert load_image(tmp_path / "x.gif").getpixel((3, 3)) == (255, 0, 0)


def bomb(path, side=60_000):
    """A PNG of a few bytes whose header promises 3.6 billion pixels."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b""))
    return path


def test_a_decompression_bomb_is_refused_before_it_unfolds(tmp_path):
    with pytest.raises(ImageError, match=r"x\.png: .*(60000 x 60000 pixels|decompression bomb)"):
        load_image(bomb(tmp_path / "x.png"))
    with pytest.raises(ImageError, match="12 x 8 pixels are more than the limit of 50"):
        load_image(picture(tmp_path / "y.png"), max_pixels=50)


def test_broken_files_say_what_is_wrong(tmp_path):
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "text.jpg").write_text("not a picture")
    whole = noise(tmp_path / "whole.png", 1, size=(200, 200)).read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    picture(tmp_path / "whole.jpg", size=(300, 300), mode="RGB")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:800])
    for name, says in [
        ("empty.jpg", "0 bytes"),
        ("text.jpg", "not a picture"),
        ("cut.png", "damaged or truncated"),
        ("cut.jpg", "damaged or truncated"),
        ("absent.jpg", "No such file"),
    ]:
        with pytest.raises(ImageError, match=says) as error:
            load_image(tmp_path / name)
        assert name in str(error.value)
