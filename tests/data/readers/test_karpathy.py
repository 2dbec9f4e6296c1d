import json

import pytest

from polysem.data import DataError, open_collection
from sample_data import karpathy


def test_a_folder_with_one_split_is_recognised_without_options(tmp_path):
    karpathy(tmp_path, [{"filename": "a.png"}, {"filename": "b.png"}])
    collection = open_collection(tmp_path)
    assert (collection.name, collection.kind, collection.splits) == ("toy", "image", {"train": 2})
    assert collection[0].captions == ("picture number 0", "another caption")
    assert collection[0].media.path.is_file()


def test_any_number_of_captions_will_do(tmp_path):
    karpathy(tmp_path, [{"filename": "a.png", "captions": []}, {"filename": "b.png", "captions": list("xyz")}])
    assert [len(item.captions) for item in open_collection(tmp_path)] == [0, 3]


def test_restval_joins_train_on_request(tmp_path):
    karpathy(tmp_path, [{"filename": "a.png"}, {"filename": "b.png", "split": "restval"}])
    assert open_collection(tmp_path).splits == {"train": 1, "restval": 1}
    assert open_collection(tmp_path, restval_in_train=True).splits == {"train": 2}


def test_pictures_are_found_in_subfolders_named_by_filepath_or_elsewhere(tmp_path):
    path = karpathy(tmp_path / "x", [{"filename": "a.png", "filepath": "val2014"}], pictures=False)
    (tmp_path / "x" / "images").mkdir()
    karpathy(tmp_path / "other", [{"filename": "a.png"}])
    with pytest.raises(DataError, match=r"none of its 1 pictures.*images="):
        open_collection(path)
    assert len(open_collection(path, images=tmp_path / "other" / "images")) == 1
    (tmp_path / "x" / "images" / "val2014").mkdir()
    (tmp_path / "other" / "images" / "a.png").rename(tmp_path / "x" / "images" / "val2014" / "a.png")
    assert open_collection(tmp_path / "x")[0].media.path.name == "a.png"


def test_a_missing_picture_is_a_listed_skip(tmp_path):
    karpathy(tmp_path, [{"filename": "a.png"}, {"filename": "b.png"}])
    (tmp_path / "images" / "b.png").unlink()
    collection = open_collection(tmp_path)
    assert [item.id for item in collection] == ["a.png"]
    assert [(s.what, "is not in" in s.why) for s in collection.skipped] == [("b.png", True)]


def test_labels_and_boxes_come_along(tmp_path):
    thing = {"name": "dog", "group": "animal", "box": [1, 2, 30, 40]}
    karpathy(tmp_path, [{"filename": "a.png", "labels": ["dog", "animal"], "objects": [thing, {"name": "cat"}]}])
    item = open_collection(tmp_path)[0]
    assert item.labels == ("dog", "animal")
    assert [(b.name, b.group, b.x0, b.y1) for b in item.boxes] == [("dog", "animal", 1.0, 40.0)]


@pytest.mark.parametrize("caption", ["b'A dog runs .'", 'b"A dog\'s ball"', "b'unclosed"])
def test_captions_that_begin_with_b_are_refused(tmp_path, caption):
    karpathy(tmp_path, [{"filename": "a.png", "captions": ["fine", caption]}])
    with pytest.raises(DataError, match=r"a\.png: caption 1 begins with b'.*half the recall.*repair_bytes=True"):
        open_collection(tmp_path)


def test_captions_that_begin_with_b_can_be_repaired(tmp_path):
    karpathy(tmp_path, [{"filename": "a.png", "captions": ["b'A dog\\'s caf\\xc3\\xa9 .'"]}])
    assert open_collection(tmp_path, repair_bytes=True)[0].captions == ("A dog's café .",)
    karpathy(tmp_path, [{"filename": "a.png", "captions": ["b'unclosed"]}])
    with pytest.raises(DataError, match="cannot be repaired"):
        open_collection(tmp_path, repair_bytes=True)


def test_empty_captions_are_listed_skips(tmp_path):
    karpathy(tmp_path, [{"filename": "a.png", "captions": ["  ", "two  words\n"]}])
    collection = open_collection(tmp_path)
    assert collection[0].captions == ("two words",)
    assert len(collection.skipped) == 1


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([{"filename": "a.png"}, {"filename": "a.png"}], "a.png: occurs more than once"),
        ([{"filename": "a.png"}, {"filename": "a.png", "split": "test"}], "is in 'train' and in 'test'"),
        ([{"filename": "a.png", "captions": [3]}], "caption 0 is int"),
    ],
)
def test_bad_entries_are_named(tmp_path, entries, says):
    karpathy(tmp_path, entries)
    with pytest.raises(DataError, match=says):
        open_collection(tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "the file is empty"),
        ("{", "not valid JSON, line 1"),
        ('{"images": 3}', "not a Karpathy file"),
        ('{"images": [{"split": "train"}]}', "image 0: has no filename"),
    ],
)
def test_bad_files_are_named(tmp_path, content, says):
    (tmp_path / "images").mkdir()
    (tmp_path / "dataset_x.json").write_text(content)
    with pytest.raises(DataError, match=says):
        open_collection(tmp_path)


def test_several_sets_in_one_folder_must_be_chosen_from(tmp_path):
    karpathy(tmp_path, [{"filename": "a.png"}], name="one")
    path = karpathy(tmp_path, [{"filename": "a.png"}], name="two")
    with pytest.raises(DataError, match=r"dataset_one\.json, dataset_two\.json"):
        open_collection(tmp_path)
    assert open_collection(path).name == "two"


def test_unknown_options_list_the_known_ones(tmp_path):
    karpathy(tmp_path, [{"filename": "a.png"}])
    with pytest.raises(ValueError, match=r"'image'.*Did you mean 'images'"):
        open_collection(tmp_path, image=tmp_path)


def test_tokens_serve_where_the_raw_text_is_missing(tmp_path):
    path = karpathy(tmp_path, [{"filename": "a.png"}])
    content = json.loads(path.read_text())
    content["images"][0]["sentences"] = [{"tokens": ["a", "dog"]}]
    path.write_text(json.dumps(content))
    assert open_collection(tmp_path)[0].captions == ("a dog",)


def test_captions_keep_their_sentence_ids(tmp_path):
    path = karpathy(tmp_path, [{"filename": "a.jpg", "captions": ["one", " ", "three"]}])
    assert open_collection(path)[0].caption_ids == ()
    content = json.loads(path.read_text())
    for number, sentence in enumerate(content["images"][0]["sentences"]):
        sentence["sentid"] = 770337 + number
    path.write_text(json.dumps(content))
    item = open_collection(path)[0]
    assert (item.captions, item.caption_ids) == (("one", "three"), ("770337", "770339"))
    assert open_collection(path).with_captions(1, "a test")[0].caption_ids == ("770337",)


@pytest.mark.parametrize(
    ("labels", "read"), [(None, ()), ("dog", ("dog",)), ([1, 2], ("1", "2")), (["dog", " dog", ""], ("dog",))]
)
def test_labels_may_be_null_one_text_or_numbers(tmp_path, labels, read):
    karpathy(tmp_path, [{"filename": "a.png", "labels": labels}])
    assert open_collection(tmp_path)[0].labels == read


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ({"dog": 1}, r'a\.png: labels are {"dog": 1} \(dict\); expected a list of names'),
        ([["dog"]], r'a\.png: a label is \["dog"\] \(list\)'),
        ([None], r"a label is null"),
        ([True], r"a label is true"),
    ],
)
def test_labels_that_are_no_names_are_named(tmp_path, labels, says):
    karpathy(tmp_path, [{"filename": "a.png", "labels": labels}])
    with pytest.raises(DataError, match=says):
        open_collection(tmp_path)
