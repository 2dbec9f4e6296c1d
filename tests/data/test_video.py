import sys
import tracemalloc

import numpy as np
import pytest
from PIL import Image

import sample_videos
from polysem.data.video import VideoError, VideoMetadata, frame_times, load_still, sample_frames, video_duration
from polysem.errors import InputError

CONTAINERS = {".mp4": "libx264", ".mov": "libx264", ".mkv": "libx264", ".avi": "mpeg4", ".webm": "libvpx-vp9"}


def shades(frames):
    return [float(np.asarray(frame.image).mean()) for frame in frames]


def test_frames_are_taken_in_the_middle_of_equal_intervals():
    assert frame_times(4, 8.0) == [1.0, 3.0, 5.0, 7.0]
    assert frame_times(1, 3.0) == [1.5]
    with pytest.raises(InputError, match="at least one frame, got 0"):
        frame_times(0, 3.0)


@pytest.mark.parametrize("suffix", CONTAINERS)
def test_every_container_gives_what_is_on_the_screen_at_each_time(tmp_path, suffix):
    path = sample_videos.ramp(tmp_path / f"ramp{suffix}", frames=16, codec=CONTAINERS[suffix])
    assert video_duration(path) == pytest.approx(2.0, abs=0.13)
    found = list(sample_frames(path, 4))
    assert [frame.time for frame in found] == pytest.approx(frame_times(4, video_duration(path)))
    # At 0.25 s of 8 frames a second the third frame is shown, and so on.
    assert shades(found) == pytest.approx([8 + 16 * number for number in (2, 6, 10, 14)], abs=8)
    assert all(frame.image.mode == "RGB" and frame.image.size == (32, 24) for frame in found)


def test_a_short_video_gives_frames_more_than_once(tmp_path):
    path = sample_videos.ramp(tmp_path / "short.mp4", frames=2)
    assert shades(sample_frames(path, 4)) == pytest.approx([8, 8, 248, 248], abs=8)
    assert len(list(sample_frames(sample_videos.ramp(tmp_path / "one.mp4", frames=1), 3))) == 3


def test_a_jump_in_a_long_video_finds_the_frames_that_reading_on_finds(tmp_path, monkeypatch):
    path = sample_videos.ramp(tmp_path / "long.mp4", frames=120, fps=2)  # a minute
    jumped = shades(sample_frames(path, 3))
    monkeypatch.setattr("polysem.data.video._SEEK_FROM", 1e9)
    assert jumped == shades(sample_frames(path, 3))
    assert jumped == pytest.approx([8 + 240 * n / 119 for n in (20, 60, 100)], abs=8)


def test_one_frame_is_held_at_a_time(tmp_path):
    path = sample_videos.write(tmp_path / "wide.mp4", (sample_videos.shade(v, (640, 480)) for v in range(0, 240, 10)))
    next(iter(sample_frames(path, 1)))
    tracemalloc.start()
    for _ in sample_frames(path, 24):
        pass
    assert tracemalloc.get_traced_memory()[1] < 4_000_000  # a frame has 0.9 MB, all of them 22
    tracemalloc.stop()


def test_a_still_is_the_frame_at_a_time(tmp_path):
    path = sample_videos.ramp(tmp_path / "ramp.mp4", frames=16)
    for time, shade in ((0.0, 8), (1.06, 136), (99.0, 248), (-1.0, 8)):
        assert np.asarray(load_still(path, time)).mean() == pytest.approx(shade, abs=8)


def test_pixels_that_are_not_square_are_stretched(tmp_path):
    path = sample_videos.ramp(tmp_path / "anamorphic.mp4", frames=4, pixel_aspect=(2, 1))
    assert next(iter(sample_frames(path, 1))).image.size == (64, 24)


def test_a_turned_video_is_upright(tmp_path):
    left = Image.new("RGB", (32, 24))
    left.paste((250, 250, 250), (0, 0, 16, 24))
    path = sample_videos.turned(sample_videos.write(tmp_path / "turned.mp4", [left] * 4))
    image = load_still(path, 0.0)
    assert image.size == (24, 32)
    # A quarter turn clockwise: what the sensor saw on its left is at the top.
    assert np.asarray(image)[:12].mean() > 200 > 50 > np.asarray(image)[20:].mean()


# -------------------------------------------------------------------------------------------------------- bad files


def test_an_empty_missing_or_foreign_file_is_named_with_the_reason(tmp_path):
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "text.mp4").write_text("no video at all " * 100)
    for name, why in (("empty.mp4", "empty"), ("text.mp4", "truncated or not a video"), ("lost.mp4", "opened")):
        with pytest.raises(VideoError, match=f"{name}.*{why}"):
            list(sample_frames(tmp_path / name, 2))
        with pytest.raises(VideoError, match=name):
            video_duration(tmp_path / name)
        assert dict(VideoMetadata(tmp_path / name)) == {}


def test_a_file_of_sound_alone_says_what_it_holds(tmp_path):
    with pytest.raises(VideoError, match=r"^\S*song\.mp4: holds no moving picture \(only audio\)"):
        list(sample_frames(sample_videos.sound(tmp_path / "song.mp4"), 2))


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_a_truncated_file_is_an_error_not_a_shorter_video(tmp_path, share):
    # With its header first the file opens, whatever is missing at its end.
    whole = sample_videos.noise(tmp_path / "noisy.mp4", 1, frames=40, options={"movflags": "+faststart"})
    assert len(list(sample_frames(whole, 4))) == 4
    with pytest.raises(VideoError, match=r"part\.mp4: .*(truncated|damaged)"):
        list(sample_frames(sample_videos.cut(tmp_path / "part.mp4", whole, share), 4))


def test_a_file_without_its_header_says_so(tmp_path):
    whole = sample_videos.ramp(tmp_path / "whole.mp4")  # the header comes last
    with pytest.raises(VideoError, match=r"half\.mp4: damaged, truncated or not a video .*ffmpeg"):
        video_duration(sample_videos.cut(tmp_path / "half.mp4", whole, 0.5))


def test_noise_in_the_middle_never_raises_anything_else(tmp_path):
    whole = sample_videos.noise(tmp_path / "whole.mp4", 3, frames=24).read_bytes()
    draws, refused = np.random.default_rng(0), {}
    for number in range(30):
        # The first is whole and the second without its beginning: what the encoder writes differs a little by machine.
        broken = bytearray(whole if number != 1 else whole[64:])
        for place in draws.integers(0, len(broken), 40 if number > 1 else 0):
            broken[place] = int(draws.integers(0, 256))
        path = tmp_path / f"{number}.mp4"
        path.write_bytes(bytes(broken))
        try:
            assert len(list(sample_frames(path, 3))) == 3
        except VideoError as error:
            refused[path.name] = str(error)
    assert "0.mp4" not in refused
    assert "1.mp4" in refused
    assert all(name in message for name, message in refused.items())


def test_a_playlist_is_not_followed(tmp_path):
    secret = sample_videos.ramp(tmp_path / "secret.mp4")
    playlist = tmp_path / "list.mp4"
    playlist.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n{secret}\n#EXT-X-ENDLIST\n")
    with pytest.raises(VideoError, match=r"list\.mp4"):
        list(sample_frames(playlist, 1))


def test_frames_beyond_the_limit_are_refused(tmp_path):
    path = sample_videos.ramp(tmp_path / "ramp.mp4", frames=2)
    with pytest.raises(VideoError, match="32 x 24 pixels are more than the limit of 100"):
        list(sample_frames(path, 1, max_pixels=100))


def test_without_pyav_the_extra_is_named(tmp_path, monkeypatch):
    path = sample_videos.ramp(tmp_path / "ramp.mp4", frames=2)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(VideoError, match=r"needs PyAV.*\[video\]"):
        video_duration(path)


def test_the_length_is_read_when_asked_for_and_once(tmp_path, monkeypatch):
    path = sample_videos.ramp(tmp_path / "ramp.mp4", frames=16)
    facts = VideoMetadata(path)
    assert {**facts, "year": 2021} == {"duration": 2.0, "year": 2021}
    path.unlink()
    assert facts["duration"] == 2.0
    assert len(facts) == 1
