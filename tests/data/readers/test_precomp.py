import numpy as np
import pytest

from polysem.data import DataError, load_features, open_collection
from sample_data import precomp


def test_train_has_each_image_once_and_five_captions(tmp_path):
    array = precomp(tmp_path, "train", 3)
    collection = open_collection(tmp_path)
    assert (collection.kind, len(collection), len(collection.captions)) == ("features", 3, 15)
    assert [item.id for item in collection] == ["train0", "train1", "train2"]
    assert collection[1].captions[0] == "train image 1 caption 0"
    assert np.array_equal(load_features(collection[2].media), array[2])


def test_redundant_images_are_read_once(tmp_path):
    array = precomp(tmp_path, "dev", 4, repeat=True)
    collection = open_collection(tmp_path)
    assert len(collection) == 4
    assert collection.splits == {"val": 4}
    assert [len(item.captions) for item in collection] == [5] * 4
    assert [item.id for item in collection] == ["dev0", "dev1", "dev2", "dev3"]
    for i, item in enumerate(collection):
        assert np.array_equal(load_features(item.media), array[i])


def test_one_caption_per_image_is_not_mistaken_for_redundancy(tmp_path):
    precomp(tmp_path, "train", 10, per_image=1)
    collection = open_collection(tmp_path)
    assert [len(item.captions) for item in collection] == [1] * 10


def test_any_number_of_captions_per_image_is_read_from_the_lengths(tmp_path):
    precomp(tmp_path, "train", 4, per_image=3)
    assert [len(item.captions) for item in open_collection(tmp_path)] == [3] * 4


def test_ids_are_made_where_there_are_none(tmp_path):
    precomp(tmp_path, "train", 2, ids=False)
    assert [item.id for item in open_collection(tmp_path)] == ["train-0", "train-1"]


def test_splits_are_chosen_by_their_file_names(tmp_path):
    precomp(tmp_path / "precomp", "train", 2)
    precomp(tmp_path / "precomp", "testall", 3)
    assert open_collection(tmp_path).splits == {"test": 3, "train": 2}
    assert open_collection(tmp_path, splits=["testall"]).splits == {"test": 3}
    with pytest.raises(DataError, match="no split 'dev'; it has testall, train"):
        open_collection(tmp_path, splits=["dev"])


def test_counts_that_do_not_divide_are_refused(tmp_path):
    precomp(tmp_path, "train", 3)
    (tmp_path / "train_caps.txt").write_text("one\ntwo\nthree\nfour\n")
    with pytest.raises(DataError, match="4 captions do not divide among 3 images"):
        open_collection(tmp_path)


def test_a_wrong_number_of_ids_is_refused(tmp_path):
    precomp(tmp_path, "train", 3)
    (tmp_path / "train_ids.txt").write_text("1\n2\n")
    with pytest.raises(DataError, match="2 ids for 3 rows of images and 15 captions"):
        open_collection(tmp_path)


def test_an_id_in_two_splits_is_a_leak(tmp_path):
    precomp(tmp_path, "train", 2)
    precomp(tmp_path, "dev", 2)
    (tmp_path / "dev_ids.txt").write_text("train1\nother\n")
    with pytest.raises(DataError, match="id train1 occurs in 'dev' and in 'train'"):
        open_collection(tmp_path)


def test_bytes_captions_are_refused(tmp_path):
    precomp(tmp_path, "train", 1)
    (tmp_path / "train_caps.txt").write_text("\n".join(["b'a dog'"] * 5))
    with pytest.raises(DataError, match="begins with b'"):
        open_collection(tmp_path)
    assert open_collection(tmp_path, repair_bytes=True)[0].captions == ("a dog",) * 5


def test_missing_and_misshapen_files_are_named(tmp_path):
    precomp(tmp_path, "train", 1)
    (tmp_path / "train_caps.txt").unlink()
    with pytest.raises(DataError, match=r"train_caps\.txt: no such file"):
        open_collection(tmp_path)
    np.save(tmp_path / "train_ims.npy", np.zeros((3, 4), np.float32))
    with pytest.raises(DataError, match=r"expected \(images, regions, dim\)"):
        open_collection(tmp_path)
