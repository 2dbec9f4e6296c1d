import json

import numpy as np
import pytest
import torch
from PIL import Image

import sample_videos
from polysem import encoders
from polysem.data import FeatureStore, open_collection
from polysem.data.images import load_image
from polysem.data.video import sample_frames
from polysem.encoders.extraction import extract
from polysem.errors import ConfigError, InputError

EFFICIENTNET = {"name": "grid", "pretrained": False, "image_size": 32}


@pytest.fixture
def grid(saved):
    return {"name": "grid", "model": str(saved("resnet")), "image_size": 32}


@pytest.fixture
def video(grid):
    return encoders.build("video_frames", encoder=grid, frames=4).eval()


@pytest.fixture
def clips(tmp_path):
    """Three clips, of which one is cut short."""
    for number, frames in enumerate((6, 20, 40)):
        sample_videos.noise(tmp_path / "videos" / f"v{number}.mp4", number, frames, options={"movflags": "+faststart"})
    sample_videos.cut(tmp_path / "videos" / "v3.mp4", tmp_path / "videos" / "v2.mp4", 0.4)
    captions = {f"v{number}": [f"clip number {number}"] for number in range(4)}
    (tmp_path / "captions.json").write_text(json.dumps(captions))
    return open_collection(tmp_path)


def test_a_token_is_the_mean_of_what_the_image_encoder_makes_of_a_frame(video, clips):
    path = clips[1].media.path
    with torch.inference_mode():
        tokens = video(video.read(path)[None])
        frames = [video.encoder.preprocess(frame.image) for frame in sample_frames(path, 4)]
        expected = torch.stack([video.encoder(frame[None]).values[0].mean(0) for frame in frames])
    assert tokens.mask.all()
    assert tokens.values.shape == (1, 4, video.dim)
    torch.testing.assert_close(tokens.values[0], expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(tokens.values[0, 0], tokens.values[0, 3])


def test_more_frames_than_go_through_at_once_change_nothing(video, monkeypatch, clips):
    pixels = video.read(clips[2].media.path)[None]
    with torch.inference_mode():
        together = video(pixels).values
        monkeypatch.setattr("polysem.encoders.image._AT_ONCE", 1)
        torch.testing.assert_close(video(pixels).values, together, atol=1e-5, rtol=1e-5)


def test_regions_that_are_padding_do_not_count(video, monkeypatch):
    from polysem.features import LocalFeatures

    values = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [float("nan"), 9.0]]]).repeat(2, 1, 1)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    monkeypatch.setattr(type(video.encoder), "forward", lambda self, pixels: LocalFeatures(values, mask))
    assert video(torch.zeros(1, 2, 3, 32, 32)).values.tolist() == [[[2.0, 3.0], [1.0, 2.0]]]


def test_a_picture_is_a_video_of_one_frame(video, tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)).save(path)
    assert video.read(path).shape == (1, 3, 32, 32)
    assert torch.equal(video.read(path), video.preprocess(load_image(path)))
    assert video(video.read(path)[None]).values.shape == (1, 1, video.dim)


def test_all_frames_of_a_video_are_augmented_alike(video, tmp_path):
    path = sample_videos.write(tmp_path / "still.mp4", [Image.radial_gradient("L").resize((64, 48)).convert("RGB")] * 8)
    one = video.read(path, torch.Generator().manual_seed(3))
    assert torch.allclose(one, one[:1].expand_as(one), atol=0.15)
    assert not torch.allclose(one, video.read(path), atol=0.15)
    assert torch.equal(one, video.read(path, torch.Generator().manual_seed(3)))


def test_every_encoder_of_pictures_can_read_frames(build, clips):
    for family in ("vit", "swin", "detr"):
        inner = build(family)
        video = encoders.build("video_frames", encoder=_without_training(inner.config), frames=2).eval()
        tokens = video(video.read(clips[0].media.path)[None])
        assert tokens.values.shape == (1, 2, inner.dim)


def _without_training(config):
    return {name: value for name, value in config.items() if name not in ("dim", "trainable", "lr_scale")}


def test_knobs_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="'bigru' does not read pictures; grid, grids, patch and detector do"):
        encoders.build("video_frames", encoder={"name": "bigru", "vocab_size": 5})
    with pytest.raises(ConfigError, match="dim, trainable, lr_scale are knobs of 'video_frames' itself"):
        encoders.build("video_frames", encoder={**EFFICIENTNET, "trainable": "all"})
    with pytest.raises(ConfigError, match="does not read pictures"):
        encoders.build("video_frames", encoder={"name": "video_frames"})


def test_input_of_another_shape_says_how_to_make_it(video):
    with pytest.raises(InputError, match=r"\(items, frames, 3, 32, 32\), got float32 of shape \(2, 3, 32, 32\)"):
        video(torch.zeros(2, 3, 32, 32))


def test_the_fingerprint_hangs_on_the_frames_but_not_on_what_trains(video, grid):
    def other(**knobs):
        return encoders.build("video_frames", **{"encoder": grid, "frames": 4, **knobs}).fingerprint()

    assert other() == other(trainable="all") == video.fingerprint()
    assert other(frames=5) != video.fingerprint()
    assert other(encoder={**grid, "image_size": 64}) != video.fingerprint()


# -------------------------------------------------------------------------------------------------- feature stores


def test_a_collection_of_raw_videos_becomes_a_store_and_what_cannot_be_read_is_named(video, clips, tmp_path):
    store = extract(clips, video, tmp_path / "store", dtype="float32")
    assert sorted(store.ids) == ["v0", "v1", "v2"]
    assert store.lengths.tolist() == [4, 4, 4]
    assert [skip.what for skip in store.skipped] == ["v3"]
    assert "truncated" in store.skipped[0].why or "damaged" in store.skipped[0].why
    assert store.manifest.encoder["name"] == "video_frames"
    with torch.inference_mode():
        alone = video(video.read(clips[1].media.path)[None]).values[0]
    torch.testing.assert_close(torch.from_numpy(np.array(store["v1"])), alone, atol=1e-5, rtol=1e-5)


def test_a_store_begun_earlier_is_completed_to_the_same_bytes(video, clips, tmp_path):
    whole = extract(clips, video, tmp_path / "whole")
    extract(clips.where([0, 1]), video, tmp_path / "parts")
    again = extract(clips, video, tmp_path / "parts")
    assert all(np.array_equal(whole[key], again[key]) for key in whole.ids)
    assert FeatureStore.open(tmp_path / "parts").fingerprint == video.fingerprint()


def test_pictures_need_an_encoder_of_pictures_and_videos_one_of_videos(video, clips, tmp_path):
    with pytest.raises(InputError, match=r"holds videos, and 'grid' reads images.*--encoder video_frames"):
        extract(clips, video.encoder, tmp_path / "store")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    pictures = type(clips)("pictures", "image", [clips[0]])
    with pytest.raises(InputError, match="holds pictures, and 'video_frames' reads videos"):
        extract(pictures, video, tmp_path / "store")
