import json

import pytest

from polysem.data import DataError, open_collection
from sample_data import noise


@pytest.fixture
def coco(tmp_path):
    for i, name in enumerate(["train2017/1.jpg", "train2017/2.jpg", "val2017/3.jpg"]):
        noise(tmp_path / name, i)
    notes = tmp_path / "annotations"
    notes.mkdir()

    def write(name, images, annotations, categories=()):
        content = {"images": images, "annotations": annotations, "categories": list(categories)}
        (notes / name).write_text(json.dumps(content))

    train = [{"id": 1, "file_name": "1.jpg"}, {"id": 2, "file_name": "2.jpg"}]
    write("captions_train2017.json", train, [{"image_id": 1, "caption": " a dog "}, {"image_id": 1, "caption": "two"}])
    write(
        "instances_train2017.json",
        train,
        [
            {"image_id": 1, "category_id": 18, "bbox": [1, 2, 3, 4]},
            {"image_id": 1, "category_id": 18, "bbox": [0, 0, 1, 1]},
        ],
        [{"id": 18, "name": "dog", "supercategory": "animal"}],
    )
    write("captions_val2017.json", [{"id": 3, "file_name": "3.jpg"}], [{"image_id": 3, "caption": "a cat"}])
    return tmp_path


def test_captions_and_instances_are_joined(coco):
    collection = open_collection(coco)
    assert collection.splits == {"train": 2, "val": 1}
    dog = collection[0]
    assert (dog.captions, dog.labels) == (("a dog", "two"), ("dog",))
    box = dog.boxes[0]
    assert (box.name, box.group, box.x0, box.x1, box.y1) == ("dog", "animal", 1, 4, 6)
    assert collection[1].captions == ()


def test_captions_keep_the_ids_of_their_annotations(coco):
    path = coco / "annotations" / "captions_val2017.json"
    content = json.loads(path.read_text())
    content["annotations"] = [
        {"image_id": 3, "id": number, "caption": text}
        for number, text in ((38, "a cat"), (182, " "), (479, "two cats"))
    ]
    path.write_text(json.dumps(content))
    cat = open_collection(path)[0]
    assert (cat.captions, cat.caption_ids) == (("a cat", "two cats"), ("38", "479"))
    assert open_collection(coco)[0].caption_ids == ()


def test_one_file_can_be_named(coco):
    assert open_collection(coco / "annotations" / "captions_val2017.json").captions == ["a cat"]


def test_instances_alone_give_labels(coco):
    collection = open_collection(coco / "annotations" / "instances_train2017.json", images=coco / "train2017")
    assert collection.label_names == ["dog"]
    assert collection.captions == []


def test_missing_pictures_are_listed_or_if_all_are_an_error(coco):
    (coco / "train2017" / "2.jpg").unlink()
    assert [skip.what for skip in open_collection(coco).skipped] == ["2.jpg"]
    with pytest.raises(DataError, match="none of its 1 pictures was found"):
        open_collection(coco / "annotations" / "captions_val2017.json", images=coco / "train2017")


def test_an_unknown_category_and_a_foreign_file_are_named(coco):
    path = coco / "annotations" / "instances_train2017.json"
    content = json.loads(path.read_text())
    content["categories"] = []
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="names no known category"):
        open_collection(coco)
    path.write_text('{"images": []}')
    with pytest.raises(DataError, match="not a COCO file"):
        open_collection(coco)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"annotations": None}, "not a COCO file: its 'annotations' is None"),
        ({"images": [{"file_name": "1.jpg"}]}, r"image 0 \(counted from 0\) has no id; expected a whole number"),
        ({"images": [{"id": 1}]}, "image 1 has no file_name; expected a text"),
        ({"categories": [{"id": 18}]}, "category 18 has no name"),
        ({"annotations": [{"id": 5, "image_id": "12"}]}, "annotation 5 has the image_id '12'; expected a whole number"),
        ({"annotations": [{"id": 5}]}, "annotation 5 has no image_id"),
        ({"annotations": [7]}, r"annotation 0 \(counted from 0\) has no image_id"),
        (
            {"annotations": [{"id": 5, "image_id": 1, "category_id": 18, "bbox": [1, 2, 3]}]},
            r"annotation 5 has the bbox \[1, 2, 3\]; expected \[x, y, width, height\]",
        ),
    ],
)
def test_malformed_entries_are_named(coco, change, says):
    path = coco / "annotations" / "instances_train2017.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match=rf"instances_train2017\.json: .*{says}"):
        open_collection(path)
