import json

import pytest

from polysem.data import DataError, open_collection
from sample_data import noise


@pytest.fixture
def photos(tmp_path):
    for i, name in enumerate(["b.jpg", "a.png", "trips/sea/c.webp"]):
        noise(tmp_path / name, i)
    (tmp_path / ".hidden").mkdir()
    noise(tmp_path / ".hidden" / "x.png", 9)
    (tmp_path / "notes.md").write_text("not a picture")
    return tmp_path


def test_pictures_without_captions_are_a_collection(photos):
    collection = open_collection(photos)
    assert [item.id for item in collection] == ["a.png", "b.jpg", "trips/sea/c.webp"]
    assert collection.captions == []
    assert collection.splits == {"all": 3}


def test_captions_stand_in_a_text_file_of_the_same_name(photos):
    (photos / "b.txt").write_text("a boat\n\na ship\n")
    assert open_collection(photos)[1].captions == ("a boat", "a ship")


def test_a_csv_table_gives_captions_labels_and_splits(photos):
    (photos / "captions.csv").write_text(
        "image,caption,labels,split\n"
        "a.png,a cat,cat;pet,train\n"
        'a.png,"a cat, asleep",,train\n'
        "trips/sea/c.webp,waves,sea,test\n"
    )
    cat, plain, sea = open_collection(photos)
    assert (cat.captions, cat.labels, cat.split) == (("a cat", "a cat, asleep"), ("cat", "pet"), "train")
    assert (plain.captions, plain.split) == ((), None)
    assert (sea.labels, sea.split) == (("sea",), "test")


def test_a_jsonl_table_does_the_same(photos):
    rows = [
        {"image": "a.png", "caption": "a cat", "labels": ["cat"]},
        {"image": "b.jpg", "caption": "b", "split": "val"},
    ]
    (photos / "captions.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    collection = open_collection(photos)
    assert collection[0].labels == ("cat",)
    assert collection[1].split == "val"
    assert open_collection(photos / "captions.jsonl").captions == collection.captions


def test_numbers_of_a_table_that_are_too_long_are_texts(photos):
    long, most = "9" * 5000, str(2**63 - 1)
    (photos / "captions.csv").write_text(f"image,caption,a,b,c,d\na.png,x,{long},{2**63},{most},3.1415926535897932\n")
    metadata = open_collection(photos)[0].metadata
    assert metadata == {"a": long, "b": str(2**63), "c": 2**63 - 1, "d": 3.1415926535897932}
    (photos / "captions.csv").unlink()
    (photos / "captions.jsonl").write_text(f'{{"image": "a.png", "a": {long}}}\n')
    with pytest.raises(DataError, match="line 1: not valid JSON"):
        open_collection(photos)


def test_folders_can_be_labels(photos):
    assert open_collection(photos, folder_labels=True)[2].labels == ("trips", "sea")


def test_rows_about_absent_pictures_are_listed_skips(photos):
    (photos / "captions.csv").write_text("image,caption\nnowhere.png,lost\na.png,found\n")
    collection = open_collection(photos)
    assert collection.captions == ["found"]
    assert [skip.what for skip in collection.skipped] == ["captions.csv line 2"]


@pytest.mark.parametrize(
    ("table", "content", "says"),
    [
        ("captions.csv", "", "the table is empty"),
        ("captions.csv", "picture,text\na.png,x\n", "must name the columns 'image' and 'caption'"),
        ("captions.csv", "image,caption\n,x\n", "line 2: has no 'image'"),
        ("captions.csv", "image,caption,split\na.png,x,train\na.png,y,test\n", "an earlier row put it in 'train'"),
        ("captions.csv", "image,caption\na.png,b'x'\n", "begins with b'"),
        ("captions.jsonl", "{", "line 1: not valid JSON"),
        ("captions.jsonl", "[1]", "line 1: has no 'image'"),
    ],
)
def test_bad_tables_are_named(photos, table, content, says):
    (photos / table).write_text(content)
    with pytest.raises(DataError, match=says):
        open_collection(photos)


def test_a_caption_file_in_another_encoding_is_named(photos):
    (photos / "b.txt").write_bytes("ein Straßenfest".encode("latin-1"))
    with pytest.raises(DataError, match=r"b\.txt: is not UTF-8"):
        open_collection(photos)


def test_an_empty_folder_and_an_absent_one_say_so(tmp_path):
    with pytest.raises(DataError, match="no pictures here"):
        open_collection(tmp_path)
    with pytest.raises(DataError, match="no such file or folder"):
        open_collection(tmp_path / "absent")
    (tmp_path / "x.tar").write_text("")
    (tmp_path / "x.json").write_text("null")
    for name in ("x.tar", "x.json"):
        with pytest.raises(DataError, match=r"x.*: no reader recognises this.*: Karpathy's dataset_\*\.json, SCAN's"):
            open_collection(tmp_path / name)


def test_links_that_lead_in_circles_are_not_followed(photos):
    (photos / "trips" / "loop").symlink_to(photos)
    assert len(open_collection(photos)) == 3


@pytest.mark.parametrize(
    ("field", "read"),
    [
        ('"red, green"', ("red", "green")),
        ('"red|dog, wild;red"', ("red", "dog, wild")),
        ('"[""red"", ""dog, wild"", 3]"', ("red", "dog, wild", "3")),
        ("7", ("7",)),
        ("", ()),
    ],
)
def test_labels_of_a_table_are_separated(photos, field, read):
    (photos / "captions.csv").write_text(f"image,caption,labels\na.png,x,{field}\n")
    assert open_collection(photos)[0].labels == read


@pytest.mark.parametrize(
    ("value", "read"), [("red, green", ("red", "green")), (["a, b", 2], ("a, b", "2")), (7, ("7",))]
)
def test_labels_of_a_jsonl_table_are_texts_lists_or_numbers(photos, value, read):
    (photos / "captions.jsonl").write_text(json.dumps({"image": "a.png", "labels": value}))
    assert open_collection(photos)[0].labels == read


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("['red']", r"captions\.csv line 2: labels begin with \[ but are not a JSON list.*Write"),
        ("[null]", r"captions\.csv line 2: a label is null"),
    ],
)
def test_labels_that_are_no_list_are_named(photos, field, says):
    (photos / "captions.csv").write_text(f"image,caption,labels\na.png,x,{field}\n")
    with pytest.raises(DataError, match=says):
        open_collection(photos)


def test_a_first_folder_may_be_the_split(tmp_path):
    for seed, name in enumerate(["dev/sea/1.png", "test/2.png", "train/dog/3.png"]):
        noise(tmp_path / name, seed)
    found = [(item.split, item.labels) for item in open_collection(tmp_path, folder_labels=True)]
    assert found == [("val", ("sea",)), ("test", ()), ("train", ("dog",))]
