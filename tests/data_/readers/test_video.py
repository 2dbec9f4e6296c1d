import json

import numpy as np
import pytest

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
