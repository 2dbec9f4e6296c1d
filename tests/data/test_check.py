import json
from collections import Counter

import numpy as np
import pytest
from PIL import Image

import sample_videos
from polysem.data.check import check_collection
from sample_data import karpathy, noise, picture, precomp


def kinds(report):
    return Counter((problem.severity, problem.kind) for problem in report.problems)


def test_a_sound_collection_has_nothing_to_report(tmp_path):
    karpathy(tmp_path, [{"filename": f"{i}.png", "captions": [f"caption {i}"]} for i in range(70)])
    seen = []
    report = check_collection(tmp_path, progress=lambda _, done, total: seen.append((done, total)))
    assert report.has_no_errors
    assert report.problems == ()
    assert seen == [(i, 70) for i in range(1, 71)]


def test_every_trouble_is_found_in_one_go(tmp_path):
    entries = [
        {"filename": "good.png"},
        {"filename": "bytes.png", "captions": ["b'a dog'", "b'a cat'"]},
        {"filename": "empty.png", "captions": ["", "fine"]},
        {"filename": "missing.png", "captions": ["gone"]},
        {"filename": "good.png", "split": "test"},
        {"filename": "zero.png", "captions": ["zero"]},
        {"filename": "cut.png", "captions": ["cut"]},
        {"filename": "grey.png", "captions": ["grey"]},
        {"filename": "cmyk.jpg", "captions": ["cmyk"]},
        {"filename": "turned.jpg", "captions": ["turned"]},
        {"filename": "moving.gif", "captions": ["moving"]},
        {"filename": "twin.png", "captions": ["twin"]},
        {"filename": "bare.png", "captions": []},
        {"filename": "shared.png", "captions": ["twin"]},
        {"filename": "leak.png", "split": "val", "captions": ["leak"]},
    ]
    karpathy(tmp_path, entries)
    images = tmp_path / "images"
    (images / "missing.png").unlink()
    (images / "zero.png").write_bytes(b"")
    cut = noise(images / "cut.png", 50, size=(90, 90))
    cut.write_bytes(cut.read_bytes()[:2000])
    picture(images / "grey.png", 9, mode="L")
    picture(images / "cmyk.jpg", (1, 2, 3, 4), mode="CMYK")
    exif = Image.Exif()
    exif[0x0112] = 3
    picture(images / "turned.jpg", (1, 99, 3), exif=exif)
    frames = [Image.new("RGB", (9, 9), colour) for colour in ("red", "blue")]
    frames[0].save(images / "moving.gif", save_all=True, append_images=frames[1:])
    original = Image.open(noise(images / "shared.png", 77))
    original.save(images / "leak.png", optimize=True)  # other bytes, the same picture
    original.save(images / "twin.png", compress_level=0)
    report = check_collection(tmp_path)
    assert not report.has_no_errors
    assert kinds(report) == {
        ("error", "bytes caption"): 2,
        ("error", "two splits"): 1,
        ("error", "leak"): 1,
        ("skip", "empty caption"): 1,
        ("skip", "missing picture"): 1,
        ("skip", "unreadable picture"): 2,
        ("note", "greyscale"): 1,
        ("note", "CMYK"): 1,
        ("note", "EXIF-rotated"): 1,
        ("note", "animated"): 1,
        ("note", "no caption"): 1,
        ("note", "shared caption"): 1,
        ("note", "duplicate picture"): 1,
    }


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_are_not_finite_are_listed_one_by_one(tmp_path, bad):
    precomp(tmp_path, "train", 3)
    array = np.load(tmp_path / "train_ims.npy")
    array[1, 0, 0] = array[2, 0, 0] = bad
    np.save(tmp_path / "train_ims.npy", array)
    report = check_collection(tmp_path)
    assert kinds(report) == {("error", "bad features"): 2}
    assert [problem.where for problem in report.problems] == ["train1", "train2"]


def test_uneven_counts_are_reported_with_the_rest(tmp_path):
    precomp(tmp_path, "train", 2)
    with (tmp_path / "train_caps.txt").open("a") as captions:
        captions.write("b'one too many'\n")
    assert ("error", "uneven counts") in kinds(check_collection(tmp_path))


def test_uneven_widths_are_reported(tmp_path):
    (tmp_path / "features").mkdir()
    for name, width in (("a", 3), ("b", 4)):
        np.save(tmp_path / "features" / f"{name}.npy", np.ones((2, width), np.float32))
    (tmp_path / "captions.json").write_text(json.dumps({"a": ["x"], "b": ["y"]}))
    assert kinds(check_collection(tmp_path)) == {("error", "uneven widths"): 1}


def test_what_cannot_be_read_at_all_is_one_error(tmp_path):
    report = check_collection(tmp_path / "absent")
    assert report.collection is None
    assert kinds(report) == {("error", "unreadable"): 1}


def test_raw_videos_are_decoded_and_compared(tmp_path):
    for name, seed in (("a", 1), ("b", 2), ("twin", 1), ("leak", 2)):
        sample_videos.noise(tmp_path / "videos" / f"{name}.mp4", seed)
    (tmp_path / "videos" / "zero.mp4").write_bytes(b"")
    sample_videos.cut(tmp_path / "videos" / "cut.mp4", tmp_path / "videos" / "a.mp4", 0.5)
    captions = {name: [f"this is {name}"] for name in ("a", "b", "twin", "leak", "zero", "cut", "lost")}
    (tmp_path / "captions.json").write_text(json.dumps(captions))
    (tmp_path / "splits.json").write_text(json.dumps({"train": ["a", "b", "twin", "zero", "cut"], "test": ["leak"]}))
    report = check_collection(tmp_path)
    assert not report.has_no_errors
    assert kinds(report) == {
        ("skip", "missing videos"): 1,
        ("skip", "unreadable video"): 2,
        ("note", "duplicate video"): 1,
        ("error", "leak"): 1,
    }
    leak = next(problem for problem in report.problems if problem.kind == "leak")
    assert leak.message.startswith("(test) shows the video of b (train)")
