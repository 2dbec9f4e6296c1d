import pytest
from PIL import Image

from polysem.data import DataError, open_collection
from polysem.data.check import compute_statistics
from polysem.data.contact_sheet import write_contact_sheet
from sample_data import karpathy, precomp


def test_statistics_count_what_is_there(tmp_path):
    entries = [
        {"filename": "a.png", "captions": ["a dog", "a dog runs"], "labels": ["dog", "animal"]},
        {"filename": "b.png", "captions": [], "split": "val", "labels": ["animal"]},
        {"filename": "c.png", "captions": ["one", ""]},
    ]
    karpathy(tmp_path, entries)
    found = compute_statistics(open_collection(tmp_path))
    assert (found["items"], found["captions"], found["words"], found["different_words"]) == (3, 3, 6, 4)
    assert found["captions_per_item"] == {0: 1, 1: 1, 2: 1}
    assert found["labels"] == {"animal": 2, "dog": 1}
    assert found["mean_words_per_caption"] == 2.0
    assert found["splits"] == {"train": 2, "val": 1}
    assert found["skipped"] == 1


def test_a_contact_sheet_shows_pictures_over_captions(tmp_path):
    karpathy(tmp_path, [{"filename": f"{i}.png"} for i in range(9)])
    collection = open_collection(tmp_path)
    path = write_contact_sheet(collection, tmp_path / "sheet.png", count=5, columns=3)
    with Image.open(path) as sheet:
        assert sheet.width == 3 * 320 + 10
        assert sheet.height > 2 * 300
        colours = sheet.convert("RGB").getcolors(maxcolors=1_000_000)
    assert colours is not None
    assert len(colours) > 100  # pictures, not blank paper
    again = write_contact_sheet(collection, tmp_path / "again.png", count=5, columns=3)
    assert again.read_bytes() == path.read_bytes()
    other = write_contact_sheet(collection, tmp_path / "other.png", count=5, columns=3, seed=1)
    assert other.read_bytes() != path.read_bytes()


def test_a_broken_picture_leaves_a_gap_on_the_sheet(tmp_path):
    karpathy(tmp_path, [{"filename": "a.png"}])
    (tmp_path / "images" / "a.png").write_bytes(b"no")
    path = write_contact_sheet(open_collection(tmp_path), tmp_path / "sheet.png")
    with Image.open(path) as sheet:
        assert sheet.convert("RGB").getpixel((100, 100)) == (0xE8, 0xD0, 0xD0)


def test_features_have_no_contact_sheet(tmp_path):
    precomp(tmp_path, "train", 2)
    with pytest.raises(DataError, match="holds features, not pictures"):
        write_contact_sheet(open_collection(tmp_path), tmp_path / "sheet.png")
