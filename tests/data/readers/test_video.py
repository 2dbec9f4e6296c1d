import json
import sys

import numpy as np
import pytest

import sample_data
import sample_videos
from polysem.data import DataError, load_features, open_collection

SHAPES = {
    "plain": {"v1": ["a man runs", "a man runs", "someone runs"], "v2": ["a cat"]},
    "msr-vtt": {
        "videos": [{"video_id": "v1", "split": "train"}, {"video_id": "v2", "split": "validate"}],
        "sentences": [
            {"video_id": "v1", "caption": "a man runs"},
            {"video_id": "v2", "caption": "a cat"},
            {"video_id": "v1", "caption": "someone runs"},
        ],
    },
    "vatex": [{"videoID": "v1", "enCap": ["a man runs", "someone runs"]}, {"videoID": "v2", "enCap": ["a cat"]}],
}


@pytest.fixture
def videos(tmp_path):
    (tmp_path / "features").mkdir()
    for name, frames in (("v1", 5), ("v2", 3)):
        np.save(tmp_path / "features" / f"{name}.npy", np.ones((frames, 4), np.float32))
    return tmp_path


@pytest.mark.parametrize("shape", SHAPES)
def test_three_layouts_of_captions_are_read(videos, shape):
    (videos / "captions.json").write_text(json.dumps(SHAPES[shape]))
    collection = open_collection(videos)
    assert collection.kind == "video"
    assert [item.captions for item in collection] == [("a man runs", "someone runs"), ("a cat",)]
    assert [load_features(item.media).shape for item in collection] == [(5, 4), (3, 4)]
    if shape == "msr-vtt":
        assert collection.splits == {"train": 1, "val": 1}


def test_splits_may_stand_in_a_file_of_their_own(videos):
    (videos / "captions.json").write_text(json.dumps(SHAPES["plain"]))
    (videos / "splits.json").write_text(json.dumps({"train": ["v1"], "test": ["v2"]}))
    assert open_collection(videos).splits == {"train": 1, "test": 1}
    (videos / "splits.json").write_text(json.dumps({"train": ["v1"], "test": ["v2", "v1"]}))
    with pytest.raises(DataError, match="v1: is in 'train' and in 'test'"):
        open_collection(videos)


def test_videos_without_features_are_listed(videos):
    (videos / "captions.json").write_text(json.dumps({**SHAPES["plain"], "v3": ["lost"]}))
    assert [skip.what for skip in open_collection(videos).skipped] == ["v3"]
    (videos / "captions.json").write_text(json.dumps({"v3": ["lost"]}))
    with pytest.raises(DataError, match="none of its 1 videos"):
        open_collection(videos)


def test_an_unknown_layout_names_the_known_ones(videos):
    (videos / "captions.json").write_text('{"v1": "a man"}')
    with pytest.raises(DataError, match="MSR-VTT"):
        open_collection(videos)


# ------------------------------------------------------------------------------------------------------ raw videos


@pytest.fixture
def raw(tmp_path):
    sample_videos.ramp(tmp_path / "videos" / "v1.mp4", frames=16)
    sample_videos.ramp(tmp_path / "videos" / "more" / "v2.mkv", frames=8)
    return tmp_path


def test_raw_videos_are_found_by_name_in_their_folder(raw):
    captions = {"v1": ["a man runs"], "more/v2": ["a cat"], "v1.mp4": ["whole name"], "v9": ["lost"]}
    (raw / "captions.json").write_text(json.dumps(captions))
    (raw / "splits.json").write_text(json.dumps({"train": ["v1"], "test": ["more/v2"]}))
    collection = open_collection(raw)
    assert (collection.kind, collection.content) == ("video", "videos")
    assert [item.media.path for item in collection][:2] == [
        raw / "videos" / "v1.mp4",
        raw / "videos" / "more" / "v2.mkv",
    ]
    assert collection.splits == {"train": 1, "test": 1, "all": 1}
    assert collection[0].metadata["duration"] == 2.0
    assert collection[1].metadata["duration"] == pytest.approx(1.0, abs=0.13)
    assert [(skip.what, skip.why) for skip in collection.skipped] == [
        ("v9", f"has no file of this name in {raw / 'videos'}.")
    ]


def test_raw_videos_may_lie_beside_the_captions_or_be_named(tmp_path, raw):
    sample_videos.ramp(tmp_path / "flat" / "v1.webm", codec="libvpx-vp9", frames=8)
    (tmp_path / "flat" / "captions.json").write_text('{"v1": ["a man runs"]}')
    assert open_collection(tmp_path / "flat")[0].media.name == "v1.webm"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "captions.json").write_text('{"v1": ["a man runs"]}')
    found = open_collection(tmp_path / "elsewhere" / "captions.json", videos=raw / "videos")
    assert found[0].media.path == raw / "videos" / "v1.mp4"
    with pytest.raises(DataError, match=r"neither a folder .*features of frame features .* nor any video"):
        open_collection(tmp_path / "elsewhere" / "captions.json")
    with pytest.raises(DataError, match="nowhere: no such folder of videos"):
        open_collection(tmp_path / "elsewhere" / "captions.json", videos=tmp_path / "nowhere")


def test_the_folder_of_videos_may_be_a_link(raw, tmp_path):
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "videos").symlink_to(raw / "videos")
    (tmp_path / "linked" / "captions.json").write_text('{"v1": ["a man runs"]}')
    assert [item.id for item in open_collection(tmp_path / "linked")] == ["v1"]


def test_features_come_before_raw_videos(videos):
    sample_videos.ramp(videos / "videos" / "v1.mp4", frames=4)
    (videos / "captions.json").write_text(json.dumps(SHAPES["plain"]))
    assert open_collection(videos).content == "features"


def test_a_plain_folder_of_videos_is_a_collection_without_captions(raw):
    collection = open_collection(raw)
    assert (collection.kind, collection.content) == ("video", "videos")
    assert [item.id for item in collection] == ["videos/v1.mp4", "videos/more/v2.mkv"]
    assert not collection.captions
    sample_data.picture(raw / "photo.png")
    assert [item.id for item in open_collection(raw)] == ["photo.png"]  # pictures come first


def test_opening_a_collection_opens_no_video(raw, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    (raw / "videos" / "v1.mp4").write_bytes(b"")
    collection = open_collection(raw)
    assert dict(collection[0].metadata) == {}


# ---------------------------------------------------------------------------------------------- splits, bad entries


@pytest.mark.parametrize(
    "splits",
    [
        {"train": ["v1.mp4"], "test": ["v2.MKV"]},
        {"train": ["v1.npy"], "test": ["v2"]},
        {"v1": "train", "v2.mp4": "test"},
    ],
)
def test_names_in_splits_may_have_an_ending_and_either_form(videos, splits):
    (videos / "captions.json").write_text(json.dumps({"v1": ["a man runs"], "v2": ["a cat"]}))
    (videos / "splits.json").write_text(json.dumps(splits))
    assert [item.split for item in open_collection(videos)] == ["train", "test"]


def test_captions_may_have_the_ending_that_splits_lack(raw):
    (raw / "captions.json").write_text('{"v1.mp4": ["a man runs"], "more/v2.mkv": ["a cat"]}')
    (raw / "splits.json").write_text('{"train": ["v1"], "test": ["more/v2"]}')
    assert [item.split for item in open_collection(raw)] == ["train", "test"]


def test_names_in_splits_that_fit_no_video_are_counted(videos):
    (videos / "captions.json").write_text(json.dumps(SHAPES["plain"]))
    (videos / "splits.json").write_text('{"train": ["v1", "v7"], "test": ["v8"]}')
    assert [(skip.what, skip.why) for skip in open_collection(videos).skipped] == [
        ("splits.json", "2 of its 3 names fit no video with captions (such as 'v7').")
    ]


@pytest.mark.parametrize(
    ("splits", "says"),
    [
        ('{"train": null}', "'train' has None. Expected"),
        ('{"train": "v1"}', "1 of its 1 names fit no video .*'train'.*the captions have 'v1'.*Expected"),
        ('{"train": ["v8"], "test": ["v9"]}', "2 of its 2 names fit no video"),
        ('["v1"]', r"got \['v1'\]. Expected"),
    ],
)
def test_bad_splits_are_named(videos, splits, says):
    (videos / "captions.json").write_text(json.dumps(SHAPES["plain"]))
    (videos / "splits.json").write_text(splits)
    with pytest.raises(DataError, match=rf"splits\.json: {says}"):
        open_collection(videos)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"sentences": [{"caption": "a cat"}]}, r"sentence 0 \(counted from 0\) has no video_id"),
        ({"sentences": [{"video_id": "v1"}]}, "sentence 0 .* has no caption"),
        ({**SHAPES["msr-vtt"], "videos": [{"split": "train"}]}, "video 0 .* has no video_id"),
        ({**SHAPES["msr-vtt"], "videos": None}, "its 'videos' is None; expected"),
        ([{"videoID": "v1", "enCap": "a cat"}], "enCap of v1 is 'a cat'; expected a list"),
    ],
)
def test_malformed_captions_are_named(videos, content, says):
    (videos / "captions.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=rf"captions\.json: {says}"):
        open_collection(videos)
