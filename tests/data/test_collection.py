from pathlib import Path

import numpy as np
import pytest

from polysem.data import Collection, DataError, Item, Media, load_features
from polysem.errors import InputError, UnknownNameError


def item(name, split=None, captions=(), labels=()):
    return Item(name, Media(Path("x"), name), captions, labels, split)


def test_captions_and_their_items_run_in_parallel():
    collection = Collection("toy", "image", [item("a", captions=("1", "2")), item("b"), item("c", captions=("3",))])
    assert collection.captions == ["1", "2", "3"]
    assert collection.caption_items.tolist() == [0, 0, 2]


def test_splits_are_counted_and_chosen():
    collection = Collection("toy", "image", [item("a", "train"), item("b", "val"), item("c", "train"), item("d")])
    assert collection.splits == {"train": 2, "val": 1, "all": 1}
    assert [i.id for i in collection.split("train")] == ["a", "c"]
    assert [i.id for i in collection.split("val", "all")] == ["b", "d"]
    with pytest.raises(UnknownNameError, match=r"'tset'.*Known: all, train, val"):
        collection.split("tset")


def test_labels_are_listed_once():
    collection = Collection("toy", "image", [item("a", labels=("dog", "cat")), item("b", labels=("dog",))])
    assert collection.label_names == ["cat", "dog"]


def test_ids_are_unique():
    with pytest.raises(InputError, match="'a'"):
        Collection("toy", "image", [item("a"), item("b"), item("a")])


def test_features_are_views_of_the_file(tmp_path):
    array = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", array)
    found = load_features(Media(tmp_path, "x.npy", 1))
    assert np.array_equal(found, array[1])
    assert not found.flags.owndata


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_are_not_finite_are_refused_with_their_place(tmp_path, bad):
    array = np.zeros((3, 4, 5), np.float32)
    array[2, 1, 1] = bad
    np.save(tmp_path / "x.npy", array)
    assert load_features(Media(tmp_path, "x.npy", 1)).shape == (4, 5)
    with pytest.raises(DataError, match=r"x\.npy, row 2: features hold NaN or infinity"):
        load_features(Media(tmp_path, "x.npy", 2))


def test_arrays_that_are_not_features_are_refused(tmp_path):
    np.save(tmp_path / "whole.npy", np.zeros((3, 4), np.int64))
    np.save(tmp_path / "flat.npy", np.zeros(3, np.float32))
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("no")
    for name, says in [
        ("whole", "int64"),
        ("flat", r"\(tokens, dim\)"),
        ("objects", "not a readable"),
        ("text", "not a readable"),
        ("none", "not a readable"),
    ]:
        with pytest.raises(DataError, match=says):
            load_features(Media(tmp_path, f"{name}.npy"))
