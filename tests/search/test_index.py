"""The index as a user meets it: pictures and captions in, the right ones out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from polysem.errors import InputError, UnknownNameError
from polysem.models import Model
from polysem.search import Entry, FilterError, Index, Manifest, SearchError, VectorBatch, query
from polysem.search.encoder import make_manifest
from polysem.search.ingest import CollectionEncoder
from polysem.search.local.backend import LocalReader
from search.photos import CAPTIONS, COLOURS, make_photos, save, tiny_model

SIMILARITIES = [
    {"name": "smooth_chamfer"},
    {"name": "mil"},
    {"name": "soft_maximum"},
    {"name": "match_probability", "form": "pcme", "learnable": True},
    {"name": "smooth_chamfer", "metric": "euclidean"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture
def index(tmp_path: Path, model: Model, photos: Path) -> Iterator[Index]:
    with Index.create(tmp_path / "index", model) as made:
        made.add(photos)
        yield made


def by_hand(model: Model, query: torch.Tensor, photos: Path, side: str) -> dict[str, float]:
    """The slow, obvious way: everything encoded by itself, scored by the similarity itself."""
    with torch.no_grad():
        if side == "image":
            ids = [f"{name}.png" for name in COLOURS]
            sets = torch.cat([model.encode_images([photos / key]) for key in ids])
        else:
            ids = [f"{name}.png#{n}" for name in COLOURS for n in range(2)]
            sets = torch.cat([model.encode_texts([text]) for texts in CAPTIONS.values() for text in texts])
        scores = (
            model.similarity.scores(sets, query)[:, 0] if side == "image" else model.similarity.scores(query, sets)[0]
        )
        return dict(zip(ids, scores.tolist(), strict=True))


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("side", ["image", "text"])
@pytest.mark.parametrize("asked", ["text", "picture", "item"])
def test_all_four_directions_give_what_the_model_says(index, model, photos, asked, side, mode):
    query = {
        "text": {"query": "something blue"},
        "picture": {"image": photos / "blue.png"},
        "item": {"item": "blue.png"},
    }
    found = index.search(**query[asked], find=side, k=20, mode=mode)
    encoded = model.encode_texts(["something blue"]) if asked == "text" else model.encode_images([photos / "blue.png"])
    expected = by_hand(model, encoded, photos, side)
    if asked == "item":
        expected.pop("blue.png", None)  # a thing is not like itself
    assert {result.id: result.score for result in found} == pytest.approx(expected, abs=1e-5)
    assert found.ids == sorted(expected, key=lambda key: -expected[key])
    assert [result.rank for result in found] == list(range(1, len(expected) + 1))
    assert found.mode == mode
    assert found.side == side


@pytest.mark.parametrize("compared", SIMILARITIES, ids=lambda given: "-".join(map(str, given.values())))
def test_every_similarity_can_be_searched(tmp_path, photos, compared):
    model = tiny_model(tmp_path, compared)
    with torch.no_grad():
        for parameter in model.similarity.parameters():
            parameter.mul_(0.7)  # as trained
    with Index.create(tmp_path / "index", model) as index:
        index.add(photos)
        for mode in ("exact", "fast"):
            found = index.search("a red picture", k=4, mode=mode)
            expected = by_hand(model, model.encode_texts(["a red picture"]), photos, "image")
            assert {result.id: result.score for result in found} == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_similarity_that_is_not_symmetric_in_all_four_directions(tmp_path, photos, mode):
    """Images are searched as by texts, texts as by images, whatever the query is."""
    model = tiny_model(tmp_path, {"name": "soft_maximum"}, k=3, text_k=2)
    assert model.set_sizes == (3, 2)
    with Index.create(tmp_path / "index", model) as index:
        index.add(photos)
        asked = {"query": "something blue"}, {"image": photos / "blue.png"}
        with torch.no_grad():
            encoded = model.encode_texts(["something blue"]), model.encode_images([photos / "blue.png"])
        for query, own in zip(asked, encoded, strict=True):
            for side in ("image", "text"):
                found = index.search(**query, find=side, k=20, mode=mode)
                expected = by_hand(model, own, photos, side)
                assert {result.id: result.score for result in found} == pytest.approx(expected, abs=1e-5)


def test_it_is_found_again_with_the_model_it_names(tmp_path, model, photos):
    model.save(tmp_path / "model")
    with Index.create(tmp_path / "index", tmp_path / "model") as made:
        made.add(photos)
        before = made.search("a green picture").as_dict()
    again = Index.open(tmp_path / "index").search("a green picture").as_dict()
    assert [each["id"] for each in again["items"]] == [each["id"] for each in before["items"]]
    assert [each["score"] for each in again["items"]] == [each["score"] for each in before["items"]]


def test_another_model_is_refused_with_the_remedy(tmp_path, index, photos):
    other = tiny_model(tmp_path, seed=5)
    index.close()
    opened = Index.open(tmp_path / "index", write=True, model=other)
    with pytest.raises(SearchError, match=r"made with another model.*polysem index COLLECTION"):
        opened.search("a red picture")
    with pytest.raises(SearchError, match="made with another model"):
        opened.add(photos)
    assert opened.stats().items == 12


def test_a_model_that_was_moved_is_asked_for(tmp_path, model, photos):
    model.save(tmp_path / "model")
    with Index.create(tmp_path / "index", tmp_path / "model") as made:
        made.add(photos)
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    with pytest.raises(SearchError, match="--model"):
        Index.open(tmp_path / "index").search("a red picture")
    assert len(Index.open(tmp_path / "index", model=tmp_path / "elsewhere").search("a red picture")) == 4
    unnamed = Index.create(tmp_path / "vectors", make_manifest(model))
    with pytest.raises(SearchError, match="does not say where its model is"):
        unnamed.search("a red picture")


def test_what_is_unchanged_is_not_encoded_again(index, photos, monkeypatch):
    assert index.add(photos).unchanged == 12
    monkeypatch.setattr(Model, "encode_texts", None)
    monkeypatch.setattr("polysem.search.ingest.embed", None)
    again = index.add(photos)
    assert (again.new, again.replaced, again.unchanged) == (0, 0, 12)


def test_what_changes_is_replaced_and_old_captions_go(tmp_path, model):
    photos = make_photos(tmp_path / "photos")
    with Index.create(tmp_path / "index", model) as index:
        index.add(photos)
        save(photos / "red.png", (10, 10, 10), np.random.default_rng(1))
        rows = [json.loads(line) for line in (photos / "captions.jsonl").read_text().splitlines()]
        rows = [row for row in rows if row["caption"] != "something green"]
        (photos / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
        report = index.add(photos)
        assert (report.new, report.replaced, report.removed) == (0, 1, 1)
        assert index.items(["green.png#1"]) == []
        assert len(index.items(["green.png#0"])) == 1
        found = index.search(image=photos / "red.png", k=1)
        assert found[0].id == "red.png"
        twin = model.encode_images([photos / "red.png"])
        assert found[0].score == pytest.approx(float(model.similarity.scores(twin, twin)), abs=1e-5)


def test_a_folder_that_was_moved_keeps_its_vectors(tmp_path, model, monkeypatch):
    photos = make_photos(tmp_path / "photos")
    with Index.create(tmp_path / "index", model) as index:
        index.add(photos)
        ids = [f"{name}.png" for name in COLOURS]
        before = index.vectors("image", ids), index.vectors("text", ["red.png#0"])
        photos.rename(tmp_path / "elsewhere")
        save(tmp_path / "elsewhere" / "red.png", (10, 10, 10), np.random.default_rng(1))
        encoded = []
        real = CollectionEncoder._items
        monkeypatch.setattr(
            CollectionEncoder,
            "_items",
            lambda self, items: encoded.extend(item.id for item in items) or real(self, items),
        )
        monkeypatch.setattr(Model, "encode_texts", None)
        report = index.add(tmp_path / "elsewhere")
        assert (report.new, report.replaced, report.reused, report.unchanged) == (0, 12, 11, 0)
        assert encoded == ["red.png"]
        np.testing.assert_array_equal(index.vectors("image", ids[1:]), before[0][1:])
        assert not np.array_equal(index.vectors("image", ["red.png"]), before[0][:1])
        np.testing.assert_array_equal(index.vectors("text", ["red.png#0"]), before[1])
        assert {item.path for item in index.items(ids)} == {str(tmp_path / "elsewhere" / key) for key in ids}
        assert index.add(tmp_path / "elsewhere").unchanged == 12
        assert index.verify().damage == []


def test_a_new_label_does_not_encode_a_picture_again(tmp_path, model, monkeypatch):
    photos = make_photos(tmp_path / "photos")
    with Index.create(tmp_path / "index", model, dtype="float16") as index:
        index.add(photos)
        before = index.vectors("image", ["red.png"])
        table = photos / "captions.jsonl"
        table.write_text(table.read_text().replace('["red"]', '["red", "warm"]'))
        monkeypatch.setattr("polysem.search.ingest.embed", None)
        monkeypatch.setattr(Model, "encode_texts", None)
        report = index.add(photos)
        assert (report.replaced, report.reused, report.unchanged) == (3, 3, 9)
        assert index.search(vectors=before[0].astype(np.float32), where="label = 'warm'").ids == ["red.png"]
        np.testing.assert_array_equal(index.vectors("image", ["red.png"]), before)


def test_damaged_vectors_are_not_carried_over(tmp_path, model):
    photos = make_photos(tmp_path / "photos")
    with Index.create(tmp_path / "index", model) as index:
        index.add(photos)
        before = index.vectors("image", ["red.png"])
    segment = tmp_path / "index" / "segment-000001.seg"
    with Index.open(tmp_path / "index") as reader:
        assert set(reader._backend.intact_vectors("image", ["red.png", "nobody"])) == {"red.png"}
        content = bytearray(segment.read_bytes())
        content[70] ^= 1  # a low bit: nothing but the checksum knows
        segment.write_bytes(content)
        assert reader._backend.intact_vectors("image", ["red.png"]) == {}
    photos.rename(tmp_path / "elsewhere")
    with Index.open(tmp_path / "index", write=True, model=model) as index:
        report = index.add(tmp_path / "elsewhere")
        assert (report.new + report.replaced, report.reused) == (12, 8)
        np.testing.assert_array_equal(index.vectors("image", ["red.png"]), before)
        assert index.verify().damage == []


def test_removing_a_picture_removes_its_captions(index):
    assert index.remove(["red.png", "not there"]) == 3
    assert index.stats().by_side == {"image": 3, "text": 6}
    assert "red.png" not in index.search("a red picture").ids
    assert index.remove(["blue.png#0"]) == 1
    assert index.stats().by_side == {"image": 3, "text": 5}
    assert index.remove_where("label = 'green'") == 3
    assert index.compact().dropped_rows == 7
    assert index.search("a red picture", find="text", k=9).ids != []


def test_filters(index):
    assert index.search("a red picture", where="label = 'red' or year >= 2021").ids != []
    found = index.search("a red picture", where="year > 2019 and year < 2022")
    assert set(found.ids) == {"green.png", "blue.png"}
    assert found.of == 2
    assert index.search("a red picture", where="year > 2050").ids == []
    for mode in ("exact", "fast"):
        assert index.search("a red picture", where="label = 'white'", mode=mode).ids == ["white.png"]
    with pytest.raises(FilterError):
        index.search("a red picture", where="label = 'x'; DROP TABLE items")
    assert index.search("a", where="caption = '''; DROP TABLE items; --'").ids == []
    assert index.stats().items == 12


def test_duplicates_are_folded_into_the_best(tmp_path, model, photos):
    folder = make_photos(tmp_path / "photos")
    (folder / "copy of red.png").write_bytes((folder / "red.png").read_bytes())
    with Index.create(tmp_path / "index", model) as index:
        index.add(folder)
        plain = index.search(image=photos / "red.png", k=5)
        assert {plain[0].id, plain[1].id} == {"red.png", "copy of red.png"}
        folded = index.search(image=photos / "red.png", k=4, dedupe=0.9999)
        assert folded[0].id == plain[0].id
        assert folded[0].duplicates == (plain[1].id,)
        assert [result.rank for result in folded] == [1, 2, 3, 4]


def test_irrelevant_results_are_cut_or_marked(tmp_path, model):
    """A collection where five items answer the query and four hundred do not."""
    items = vectors(405)
    query = vectors(1, seed=9)[0]
    close = query + 0.1 * vectors(5, seed=3)
    items[:5] = close / np.linalg.norm(close, axis=-1, keepdims=True)
    with Index.create(tmp_path / "index", model) as index:
        index.add(VectorBatch("image", entries(405), items))
        cut = index.search(vectors=query, k=50, relevant=True)
        assert {f"item {i}" for i in range(5)} <= set(cut.ids)
        assert len(cut) <= 8
        marked = index.search(vectors=query, k=50, relevant="mark")
        assert len(marked) == 50
        assert [result.id for result in marked if result.relevant] == cut.ids
        assert cut.cut is not None
        assert marked.as_dict()["cut"]["count"] == len(cut)


def test_unreadable_pictures_are_named_and_the_rest_is_indexed(tmp_path, model):
    photos = make_photos(tmp_path / "photos")
    (photos / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
    (photos / "empty.png").write_bytes(b"")
    with Index.create(tmp_path / "index", model) as index:
        report = index.add(photos)
        assert report.new == 12
        assert {each.what for each in report.skipped} == {"broken.jpg", "empty.png"}
        assert "0 bytes" in next(each.why for each in report.skipped if each.what == "empty.png")


def test_pictures_are_known_by_their_path(index, photos, tmp_path):
    save(tmp_path / "new.png", (1, 2, 3), np.random.default_rng(0))
    given = index.collect_files([photos / "red.png", tmp_path / "new.png"])
    assert [item.id for item in given] == ["red.png", (tmp_path / "new.png").as_posix()]
    report = index.add(given)
    assert (report.new, report.replaced, report.unchanged) == (1, 0, 3)
    assert index.stats().by_side["image"] == 5


def test_a_picture_keeps_what_the_index_knows_of_it(tmp_path, model):
    photos = make_photos(tmp_path / "photos")
    with Index.create(tmp_path / "index", model) as index:
        index.add(photos)
        (before,), texts = index.items(["red.png"]), index.captions("red.png")
        save(photos / "red.png", (10, 10, 10), np.random.default_rng(1))
        report = index.add(index.collect_files([photos / "red.png"]))
        assert (report.new, report.replaced, report.removed) == (0, 1, 0)
        (after,) = index.items(["red.png"])
        assert after.hash != before.hash
        said = ("caption", "labels", "metadata", "path")
        assert [getattr(after, name) for name in said] == [getattr(before, name) for name in said]
        assert [(text.id, text.caption) for text in index.captions("red.png")] == [
            (text.id, text.caption) for text in texts
        ]
        assert len(texts) == 2


def test_more_than_ten_captions_keep_their_order(tmp_path, model):
    photos = make_photos(tmp_path / "photos")
    rows = [{"image": "red.png", "caption": f"a red picture {number}"} for number in range(12)]
    (photos / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with Index.create(tmp_path / "index", model) as index:
        index.add(photos)
        (item,) = index.collect_files([photos / "red.png"])
        assert list(item.captions) == [row["caption"] for row in rows]


def test_a_source_without_captions_leaves_those_of_others(tmp_path, model):
    photos = make_photos(tmp_path / "photos")
    with Index.create(tmp_path / "index", model) as index:
        index.add(photos)
        (photos / "captions.jsonl").unlink()
        assert index.add(photos).removed == 0
        assert index.stats().by_side == {"image": 4, "text": 8}


def test_a_new_picture_does_not_take_the_name_of_another(index, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    save(tmp_path / "elsewhere" / "red.png", (1, 2, 3), np.random.default_rng(0))
    monkeypatch.chdir(tmp_path / "elsewhere")
    (given,) = index.collect_files(["red.png"])
    assert given.id == (tmp_path / "elsewhere" / "red.png").as_posix()
    assert index.add(index.collect_files(["red.png"])).new == 1


def test_a_file_that_is_given_twice_is_taken_once(index, photos, monkeypatch):
    monkeypatch.chdir(photos)
    given = index.collect_files(["red.png", photos / "red.png", f"../{photos.name}/red.png", "blue.png"])
    assert [item.id for item in given] == ["red.png", "blue.png"]
    assert [item.id for item in index.collect_files([f"../{photos.name}/red.png"])] == ["red.png"]


@pytest.mark.parametrize("side", ["image", "text"])
def test_an_index_of_one_side(tmp_path, side):
    manifest = Manifest("f", {side: 2}, 16, {"name": "smooth_chamfer"})
    with Index.create(tmp_path / "index", manifest) as index:
        assert index.search(vectors=vectors(1)[0]).ids == []
        index.add(VectorBatch(side, entries(5), vectors(5)))
        found = index.search(vectors=vectors(5)[3], k=2)
        assert (found[0].id, found.side, found.of) == ("item 3", side, 5)
        assert len(index.search(item="item 3", relevant="mark", dedupe=True)) == 4
        with pytest.raises(InputError, match=f"holds {side}"):
            index.search(vectors=vectors(1)[0], find="text" if side == "image" else "image")


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_folding_goes_on_until_there_are_enough(tmp_path, model, mode):
    """Three hundred copies of each of five items: far more than are looked at first."""
    items = np.repeat(vectors(5), 300, axis=0)
    with Index.create(tmp_path / "index", model) as index:
        index.add(VectorBatch("image", entries(1500), items))
        found = index.search(vectors=items[0], k=4, dedupe=0.999, mode=mode)
        assert [result.rank for result in found] == [1, 2, 3, 4]
        assert found[0].score > found[3].score
        assert len(found[0].duplicates) == 299
        assert len(index.search(vectors=items[0], k=9, dedupe=0.999, mode=mode)) == 5


def test_folding_ends_in_an_index_of_copies_and_says_so(tmp_path, model, monkeypatch):
    monkeypatch.setattr(query, "MOST", 64)
    items = np.repeat(vectors(5), 100, axis=0)
    asked = []
    with Index.create(tmp_path / "index", model) as index:
        index.add(VectorBatch("image", entries(500), items))
        real = LocalReader.search
        monkeypatch.setattr(
            LocalReader,
            "search",
            lambda self, side, query, k, **more: asked.append(k) or real(self, side, query, k, **more),
        )
        found = index.search(vectors=items[0], k=3, dedupe=0.999)
        assert asked == [12, 24, 48, 64]
        assert (len(found), found.folded_among) == (1, 64)
        assert len(found[0].duplicates) == 63
        assert found.as_dict()["folded_among"] == 64
        enough = index.search(vectors=items[0], k=1, dedupe=0.999)
        assert (len(enough), enough.folded_among) == (1, None)
        like = index.search(item="item 0", k=1, dedupe=0.999)
        assert (len(like), len(like[0].duplicates), like.folded_among) == (1, 3, None)
        asked.clear()
        many = index.search(vectors=items[0], k=300, dedupe=0.999)  # so many were asked for
        assert asked == [300]
        assert (len(many), many.folded_among) == (3, 300)
        assert index.search(vectors=items[0], k=500, dedupe=0.999).folded_among is None  # all were looked at


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_an_item_is_not_counted_among_those_like_it(index, mode):
    for where, of in [(None, 3), ("label = 'red' or label = 'blue'", 1), ("label = 'red'", 1)]:
        found = index.search(item="blue.png", k=1, mode=mode, where=where)
        assert found.of == of
        assert found.scored <= of
        assert "blue.png" not in found.ids
    assert index.search(item="blue.png", find="text", mode=mode).of == 8


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"caption": "red", 'a"b': 1}, "metadata name"),
        ({"caption": "red", "a\nb": 1}, "metadata name"),
        ({"caption": "red", "size": float("nan")}, "JSON"),
        ({"caption": "red", "size": 2**70}, "64 bits"),
        ({"caption": "red", "note": "a\0b"}, "NUL"),
        ({"caption": "a\0b"}, "NUL"),
        ({"caption": "a\ud800b"}, "Unicode"),
        ({"caption": "red", "labels": ["a\ud800"]}, "Unicode"),
    ],
)
def test_an_item_that_cannot_be_kept_is_left_out_and_named(tmp_path, model, row, words):
    photos = make_photos(tmp_path / "photos")
    others = [line for line in (photos / "captions.jsonl").read_text().splitlines() if "red.png" not in line]
    (photos / "captions.jsonl").write_text("\n".join([*others, json.dumps({"image": "red.png", **row})]))
    with Index.create(tmp_path / "index", model) as index:
        report = index.add(photos)
        assert report.new == 9
        (left,) = report.skipped
        assert left.what == "red.png"
        assert words in left.why


def test_a_caption_that_cannot_be_kept_is_left_out_alone(tmp_path, model):
    photos = make_photos(tmp_path / "photos")
    with (photos / "captions.jsonl").open("a") as file:
        file.write(json.dumps({"image": "red.png", "caption": "a\ud800b"}) + "\n")
        file.write(json.dumps({"image": "red.png", "caption": "the last one"}) + "\n")
    with Index.create(tmp_path / "index", model) as index:
        report = index.add(photos)
        assert report.new == 13
        assert [each.what for each in report.skipped] == ["red.png#2"]
        assert [text.id for text in index.captions("red.png")] == ["red.png#0", "red.png#1", "red.png#3"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_file_whose_name_is_no_unicode_is_left_out_and_named(tmp_path, model):
    photos = make_photos(tmp_path / "photos")
    odd = Path(os.fsdecode(os.fsencode(photos) + b"/caf\xe9.png"))
    odd.write_bytes((photos / "red.png").read_bytes())
    with Index.create(tmp_path / "index", model) as index:
        for source in (photos, index.collect_files([odd])):
            report = index.add(source)
            assert ["Unicode" in each.why for each in report.skipped] == [True]
        assert index.stats().items == 12


def test_what_the_camera_wrote_can_be_filtered(tmp_path, model):
    picture = Image.new("RGB", (40, 40), "red")
    exif = picture.getexif()
    exif[0x0110] = "Box Brownie"
    exif.get_ifd(0x8769)[0x9003] = "2021:07:04 10:30:00"
    (tmp_path / "photos").mkdir()
    picture.save(tmp_path / "photos" / "a.jpg", exif=exif)
    with Index.create(tmp_path / "index", model) as index:
        index.add(tmp_path / "photos")
        (item,) = index.items(["a.jpg"])
        assert item.metadata == {"taken": "2021-07-04 10:30:00", "year": 2021, "camera": "Box Brownie"}
        assert index.search("a red picture", where="year > 2020 and camera like 'box%'").ids == ["a.jpg"]


def test_features_made_earlier_are_searched_as_pictures_are(tmp_path, model, photos, index):
    from polysem.data import open_collection
    from polysem.encoders.extraction import extract, extract_texts

    collection = open_collection(photos)
    extract(collection, model.image.encoder, tmp_path / "features", dtype="float32")
    extract_texts(collection, model.text.encoder, tmp_path / "texts", dtype="float32")
    with Index.create(tmp_path / "from features", model) as other:
        other.add(photos, features=tmp_path / "features", text_features=tmp_path / "texts")
        for side in ("image", "text"):
            ours, theirs = (each.search("something white", find=side, k=20) for each in (other, index))
            assert ours.ids == theirs.ids
            assert [r.score for r in ours] == pytest.approx([r.score for r in theirs], abs=1e-5)


def test_other_features_of_captions_replace_their_vectors(tmp_path, model, photos, index):
    from polysem.data import open_collection
    from polysem.encoders.extraction import extract_texts

    collection = open_collection(photos)
    mirrored = [replace(item, captions=tuple(text[::-1] for text in item.captions)) for item in collection]
    extract_texts(collection, model.text.encoder, tmp_path / "texts", dtype="float32")
    extract_texts(replace(collection, items=mirrored), model.text.encoder, tmp_path / "other", dtype="float32")
    texts = [item.id for item in index.sample("text", 100)]
    before = index.vectors("text", texts)
    assert index.add(photos, text_features=tmp_path / "texts").replaced == len(texts)
    assert index.add(photos, text_features=tmp_path / "texts").unchanged == len(collection) + len(texts)
    np.testing.assert_allclose(index.vectors("text", texts), before, atol=1e-5)
    done = index.add(photos, text_features=tmp_path / "other")
    assert (done.replaced, done.reused, done.unchanged) == (len(texts), 0, len(collection))
    assert not np.allclose(index.vectors("text", texts), before, atol=1e-3)
    assert index.add(photos).replaced == len(texts)
    np.testing.assert_array_equal(index.vectors("text", texts), before)


def test_half_precision_takes_half_the_space(tmp_path, model, photos, index):
    with Index.create(tmp_path / "half", model, dtype="float16") as half:
        half.add(photos)
        ours, theirs = (each.search("something white", k=20) for each in (half, index))
        assert [r.score for r in ours] == pytest.approx([r.score for r in theirs], abs=2e-3)
        assert half.manifest.dtype == "float16"


# ------------------------------------------------------------------------------------------------------------ bad input


def vectors(rows: int, k: int = 2, dim: int = 16, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(rows, k, dim)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)


def entries(count: int) -> list[Entry]:
    return [Entry(f"item {i}") for i in range(count)]


def test_vectors_that_cannot_be_searched_are_refused_and_nothing_is_added(index):
    spoilt = vectors(3)
    spoilt[1, 0, 0] = np.nan
    zero = vectors(3)
    zero[2, 1] = 0
    for wrong, words in [
        (spoilt, "item 1.*NaN"),
        (zero, "item 2.*zeros"),
        (3 * vectors(3), "item 0.*norm 3"),
        (vectors(3, k=3), "need vectors of shape"),
        (vectors(3, dim=8), "need vectors of shape"),
        (vectors(2), "need vectors of shape"),
    ]:
        with pytest.raises(InputError, match=words):
            index.add(VectorBatch("image", entries(3), wrong))
    assert index.stats().items == 12
    assert index.add(VectorBatch("image", entries(3), vectors(3))).new == 3


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"query": "  "}, "empty"),
        ({}, "one thing"),
        ({"query": "a", "item": "red.png"}, "one thing"),
        ({"item": "nothing"}, "no item 'nothing'"),
        ({"item": "a\udc80"}, "no item"),
        ({"query": "a", "k": 0}, "k must be at least 1"),
        ({"query": "a", "k": 2.5}, "whole number, got 2.5"),
        ({"query": "a", "k": "3"}, "whole number, got '3'"),
        ({"image": "no such.png"}, "no such.png"),
        ({"vectors": np.zeros((2, 16), np.float32)}, "norm 0"),
        ({"vectors": np.full((2, 16), np.nan, np.float32)}, "NaN"),
        ({"vectors": np.ones((2, 5), np.float32)}, "same model"),
        ({"vectors": np.ones(16, np.float32)}, "same model"),
    ],
)
def test_bad_queries_are_explained(index, query, words):
    for mode in ("exact", "fast"):
        with pytest.raises(InputError, match=words):
            index.search(**query, mode=mode)


def test_unknown_sides_and_modes_list_what_exists(index):
    with pytest.raises(UnknownNameError, match="image, text"):
        index.search("a", find="video")
    with pytest.raises(UnknownNameError, match="exact, fast"):
        index.search("a", mode="quick")


def test_an_empty_index_finds_nothing(tmp_path, model):
    with Index.create(tmp_path / "index", model) as index:
        for mode in ("exact", "fast"):
            assert index.search("a red picture", mode=mode, relevant=True, dedupe=True).ids == []
        assert index.verify().audit is None
        assert index.stats().items == 0


def test_more_results_than_items_are_all_of_them(index):
    for mode in ("exact", "fast"):
        assert len(index.search("a red picture", k=1000, mode=mode)) == 4


def test_ids_of_any_script(tmp_path, model):
    ids = ["привет", "图片", "🐕‍🦺", "a'b\"c", "x#0", "%_\\", "-- drop", "é", "e\u0301"]
    with Index.create(tmp_path / "index", model) as index:
        index.add(VectorBatch("image", [Entry(key) for key in ids], vectors(len(ids))))
        assert set(index.search("a", k=20).ids) == set(ids)
        for key in ids:
            assert index.search(item=key, k=20).of == len(ids) - 1
        assert index.remove(ids[:3]) == 3
        assert set(index.search("a", k=20).ids) == set(ids[3:])


def test_a_folder_without_an_index_says_how_to_make_one(tmp_path, model):
    with pytest.raises(SearchError, match="polysem index COLLECTION"):
        Index.open(tmp_path / "nothing")
    with pytest.raises(InputError, match="takes a model"):
        Index.create(tmp_path / "index", 3)
    with pytest.raises(InputError, match=r"milvus\+"):
        Index.create(tmp_path / "index", model, store="postgres://")
    Index.create(tmp_path / "index", model).close()
    with pytest.raises(SearchError, match="holds an index already"):
        Index.create(tmp_path / "index", model)
