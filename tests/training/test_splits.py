import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from polysem.data.collection import Collection, Item, Media
from polysem.training.splits import CAPTIONS_AT_LEAST, find_leaks
from sample_data import noise


def pictures(folder, split, seeds, captions="a picture of {}"):
    """A split of pictures that are unlike each other."""
    items = [
        Item(f"{split}{seed}", Media(folder, noise(folder / f"{split}{seed}.png", seed).name), (captions.format(seed),))
        for seed in seeds
    ]
    return Collection("toy", "image", items)


def rows(folder, split, array):
    np.save(folder / f"{split}.npy", array)
    items = [Item(f"{split}{i}", Media(folder, f"{split}.npy", row=i)) for i in range(len(array))]
    return Collection("toy", "features", items)


def captioned(split, captions):
    """One item with a picture that nobody has."""
    return Collection("toy", "image", [Item(split, Media(Path("nowhere"), f"{split}.png"), tuple(captions))])


def test_splits_that_share_nothing_are_sound(tmp_path):
    train, val = pictures(tmp_path, "train", range(8)), pictures(tmp_path, "val", range(8, 12))
    assert find_leaks(train, val) == []


def test_the_same_item_in_both_splits_is_named(tmp_path):
    train = pictures(tmp_path, "item", range(8))
    (found,) = find_leaks(train, train.where([2, 5]))
    assert found.name == "leaking validation set"
    assert found.step == 0
    assert "2 of 2" in found.says
    assert "item2, item5" in found.says
    assert "--set data.val=" in found.advice


def test_the_same_picture_under_another_name_is_named(tmp_path):
    train, val = pictures(tmp_path, "train", range(8)), pictures(tmp_path, "val", range(8, 12))
    shutil.copy(tmp_path / "train3.png", tmp_path / "val9.png")
    (found,) = find_leaks(train, val)
    assert "1 of 4" in found.says
    assert "val9 = train3" in found.says


def test_pictures_of_one_size_in_bytes_are_told_apart(tmp_path):
    train, val = pictures(tmp_path, "train", range(4)), pictures(tmp_path, "val", range(4, 8))
    for i, path in enumerate(sorted(tmp_path.iterdir())):
        path.write_bytes(bytes([i]) * 100)
    assert find_leaks(train, val) == []


def test_the_same_features_are_named_and_a_common_first_token_is_not_enough(tmp_path):
    rng = np.random.default_rng(0)
    train, val = (rng.standard_normal((size, 5, 3)).astype(np.float32) for size in (20, 6))
    val[:, 0] = train[7, 0]  # a black frame begins every video
    val[4] = train[7]
    (found,) = find_leaks(rows(tmp_path, "train", train), rows(tmp_path, "val", val))
    assert "val4 = train7" in found.says
    assert "1 of 6" in found.says


def test_what_cannot_be_read_is_passed_over(tmp_path):
    train, val = pictures(tmp_path, "train", range(4)), pictures(tmp_path, "val", range(4))
    (tmp_path / "train0.png").unlink()
    (tmp_path / "val1.png").unlink()
    (tmp_path / "broken.npy").write_bytes(b"no array")
    broken = Collection("toy", "features", [Item("broken", Media(tmp_path, "broken.npy", row=0))])
    (found,) = find_leaks(train, val)
    assert "2 of 4" in found.says
    assert (
        find_leaks(broken, Collection("toy", "features", [Item("other", Media(tmp_path, "broken.npy", row=9))])) == []
    )


def test_a_validation_split_whose_captions_were_copied_is_named():
    train = captioned("train", [f"Sentence  number {i}." for i in range(100)])
    val = captioned("val", [f"sentence number {i}. " for i in range(60, 160)])
    (found,) = find_leaks(train, val)
    assert "40%" in found.says
    assert "sentence number 60" in found.says


@pytest.mark.parametrize(("shared", "total"), [(20, 100), (CAPTIONS_AT_LEAST - 1, 30)])
def test_a_few_common_sentences_are_no_leak(shared, total):
    train = captioned("train", [f"a dog runs {i}" for i in range(total)])
    val = captioned("val", [f"a dog runs {i}" if i < shared else f"another {i}" for i in range(total)])
    assert find_leaks(train, val) == []


def test_eight_thousand_pictures_would_take_less_than_two_seconds(tmp_path):
    count = 1000
    for i in range(count):
        (tmp_path / f"{i}.jpg").write_bytes(i.to_bytes(4, "big") * (100 + i % 100))
    items = [Item(f"{i}", Media(tmp_path, f"{i}.jpg"), (f"caption {i}",)) for i in range(count)]
    train, val = Collection("toy", "image", items[:800]), Collection("toy", "image", items[800:])

    def once() -> float:
        began = time.thread_time()  # of this thread alone: others may still be busy with an earlier test
        assert find_leaks(train, val) == []
        return time.thread_time() - began

    # The best of five: a busy machine slows some runs, needless work slows them all.
    assert min(once() for _ in range(5)) < 2 * count / 8000
