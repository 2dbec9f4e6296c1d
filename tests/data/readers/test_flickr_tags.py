"""MIRFLICKR-25K and NUS-WIDE as their authors pack them: tags as text, labels from lists and columns."""

import numpy as np
import pytest

from polysem.data import DataError, open_collection
from sample_data import noise


@pytest.fixture
def mirflickr(tmp_path):
    for number in (1, 2, 10):
        noise(tmp_path / f"im{number}.jpg", number)
    tags, labels = tmp_path / "meta" / "tags", tmp_path / "mirflickr25k_annotations_v080"
    tags.mkdir(parents=True)
    labels.mkdir()
    (tags / "tags1.txt").write_text("sea\nsunset\n")
    (tags / "tags2.txt").write_text("")
    (tags / "tags10.txt").write_text("dog\n")
    (labels / "water.txt").write_text("1\n2\n")
    (labels / "animals.txt").write_text("10\n")
    (labels / "animals_r1.txt").write_text("10\n")
    (labels / "README.txt").write_text("not a label")
    return tmp_path


def test_mirflickr_has_its_tags_as_one_text_and_its_labels(mirflickr):
    first, second, tenth = open_collection(mirflickr)
    assert (first.id, first.captions, first.labels) == ("im1.jpg", ("sea sunset",), ("water",))
    assert (second.captions, second.labels) == ((), ("water",))
    assert (tenth.captions, tenth.labels) == (("dog",), ("animals",))
    assert open_collection(mirflickr, relevant=True)[2].labels == ("animals", "animals_r1")


def test_a_broken_label_file_is_named(mirflickr):
    (mirflickr / "mirflickr25k_annotations_v080" / "water.txt").write_text("1\nx2\n")
    with pytest.raises(DataError, match=r"water\.txt: expected a picture's number"):
        open_collection(mirflickr)
    for path in (mirflickr / "mirflickr25k_annotations_v080").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="no label files"):
        open_collection(mirflickr)


@pytest.fixture
def nus_wide(tmp_path):
    names = ["actor\\0001_111.jpg", "sea\\0002_222.jpg", "sea\\0003_333.jpg"]
    for number, name in enumerate(names[:2]):
        noise(tmp_path / "Flickr" / name.replace("\\", "/"), number)
    for folder in ("ImageList", "Groundtruth/AllLabels", "NUS_WID_Tags"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ImageList" / "Imagelist.txt").write_text("\n".join(names) + "\n")
    (tmp_path / "ImageList" / "TrainImagelist.txt").write_text(names[0] + "\n")
    (tmp_path / "ImageList" / "TestImagelist.txt").write_text("\n".join(names[1:]) + "\n")
    labels = tmp_path / "Groundtruth" / "AllLabels"
    (labels / "Labels_person.txt").write_text("1\n0\n0\n")
    (labels / "Labels_ocean.txt").write_text("0\n1\n1\n")
    (tmp_path / "NUS_WID_Tags" / "All_Tags.txt").write_text("111   film star\n222\tsea\n333 waves\n")
    return tmp_path


def test_nus_wide_has_tags_labels_and_the_authors_splits(nus_wide):
    collection = open_collection(nus_wide)
    actor, sea = collection
    assert (actor.id, actor.captions, actor.labels, actor.split) == (
        "actor/0001_111.jpg",
        ("film star",),
        ("person",),
        "train",
    )
    assert (sea.captions, sea.labels, sea.split) == (("sea",), ("ocean",), "test")
    assert actor.media.path.is_file()
    assert [skip.what for skip in collection.skipped] == ["sea/0003_333.jpg"]


def test_a_column_of_the_wrong_length_is_named(nus_wide):
    (nus_wide / "Groundtruth" / "AllLabels" / "Labels_ocean.txt").write_text("0\n1\n")
    with pytest.raises(DataError, match=r"Labels_ocean\.txt: expected 3 lines of 0 or 1, one per picture; got 2"):
        open_collection(nus_wide)


@pytest.fixture
def features(tmp_path):
    np.save(tmp_path / "train_ims.npy", np.random.default_rng(0).normal(size=(3, 2, 4)).astype(np.float32))
    (tmp_path / "train_caps.txt").write_text("".join(f"caption {n}\n" for n in range(6)))
    return tmp_path


def test_precomputed_features_may_have_a_matrix_of_labels(features):
    np.save(features / "train_labels.npy", np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]], np.int8))
    assert [item.labels for item in open_collection(features)] == [("0", "2"), (), ("1",)]
    (features / "label_names.txt").write_text("cat\ndog\nsea\n")
    assert [item.labels for item in open_collection(features)] == [("cat", "sea"), (), ("dog",)]
    (features / "label_names.txt").write_text("cat\ndog\n")
    with pytest.raises(DataError, match="2 different names for the 3 columns"):
        open_collection(features)
    np.save(features / "train_labels.npy", np.array([[1, 0, 2]] * 3))
    with pytest.raises(DataError, match="of 0 and 1"):
        open_collection(features)


def test_or_a_line_of_labels_for_each_image(features):
    (features / "train_labels.txt").write_text("cat; sea\n\ndog;dog\n")
    assert [item.labels for item in open_collection(features)] == [("cat", "sea"), (), ("dog",)]
    (features / "train_labels.txt").write_text("cat\n")
    with pytest.raises(DataError, match="1 lines for 3 images"):
        open_collection(features)


def test_a_flag_that_is_neither_0_nor_1_is_named(nus_wide):
    (nus_wide / "Groundtruth" / "AllLabels" / "Labels_ocean.txt").write_text("0\nnan\n1\n")
    with pytest.raises(DataError, match=r"Labels_ocean\.txt: line 2, of \S+\.jpg, is 'nan'; expected 0 or 1"):
        open_collection(nus_wide)


@pytest.mark.parametrize("form", [{"fmt": "%d"}, {"fmt": "%d", "delimiter": ","}, {}])
def test_a_matrix_may_be_written_as_text(features, form):
    np.savetxt(features / "train_labels.txt", [[1, 0, 1], [0, 0, 0], [0, 1, 0]], **form)
    assert [item.labels for item in open_collection(features)] == [("0", "2"), (), ("1",)]
    (features / "label_names.txt").write_text("cat\ndog\nsea\n")
    assert [item.labels for item in open_collection(features)] == [("cat", "sea"), (), ("dog",)]


@pytest.mark.parametrize(
    ("lines", "read"),
    [
        ("red, blue\nred\nold red|a, b", [("red", "blue"), ("red",), ("old red", "a, b")]),
        ("0\n1\n0", [("0",), ("1",), ("0",)]),
        ("3, 7\n1, 2\n5", [("3", "7"), ("1", "2"), ("5",)]),
    ],
)
def test_names_are_separated_by_commas_where_nothing_else_does(features, lines, read):
    (features / "train_labels.txt").write_text(lines)
    assert [item.labels for item in open_collection(features)] == read


@pytest.mark.parametrize(
    ("matrix", "says"),
    [
        (np.full((3, 2), np.nan), r"row 0, column 0 \(counted from 0\) is nan; .* 0 and 1 \(6 entries"),
        (np.array([[0, 1], [1, -1], [0, 0]]), r"row 1, column 1 \(counted from 0\) is -1; .*Write 1 where"),
        (np.zeros((2, 2)), r"expected the shape \(3, labels\), got \(2, 2\)"),
        (np.zeros(3), r"expected the shape \(3, labels\), got \(3,\)"),
        (np.array([["a", "b"]] * 3), "expected a matrix of 0 and 1, got <U1"),
    ],
)
def test_what_is_wrong_with_a_matrix_is_named(features, matrix, says):
    np.save(features / "train_labels.npy", matrix)
    with pytest.raises(DataError, match=rf"train_labels\.npy: {says}"):
        open_collection(features)


@pytest.mark.parametrize(
    ("lines", "says"),
    [("0 1\n3 0\n0 0", "row 1, column 0 .* is 3;"), ("0 1 1\n0 1\n1 1 1", "line 2 has 2 numbers, others have 3")],
)
def test_what_is_wrong_with_a_written_matrix_is_named(features, lines, says):
    (features / "train_labels.txt").write_text(lines)
    with pytest.raises(DataError, match=rf"train_labels\.txt: {says}"):
        open_collection(features)


def test_splits_must_have_the_same_label_columns(features):
    np.save(features / "test_ims.npy", np.random.default_rng(1).normal(size=(2, 2, 4)).astype(np.float32))
    (features / "test_caps.txt").write_text("one\ntwo\nthree\nfour\n")
    np.save(features / "train_labels.npy", np.ones((3, 4), np.int8))
    np.save(features / "test_labels.npy", np.ones((2, 3), np.int8))
    with pytest.raises(DataError, match=r"label columns: 3 in test_labels\.npy, 4 in train_labels\.npy"):
        open_collection(features)
    np.save(features / "test_labels.npy", np.ones((2, 4), np.int8))
    assert len(open_collection(features)) == 5
