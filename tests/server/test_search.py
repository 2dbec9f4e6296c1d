"""Searching over HTTP gives what searching the index gives."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from polysem.errors import InputError
from polysem.search import Entry, Index, Manifest, VectorBatch
from polysem.server.routes.schemas import SearchRequest
from polysem.server.routes.search import run_search
from search.photos import COLOURS, tiny_model
from server.running import client, error, make_index, picture
from waiting import wait_until


@pytest.fixture
def index(place, model):
    with Index.open(place, model=model) as opened:
        yield opened


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("find", ["image", "text"])
def test_words_find_what_the_index_finds(reader, index, find, mode):
    said = reader.post("/api/v1/search", json={"text": "something blue", "find": find, "k": 20, "mode": mode}).json()
    expected = index.search("something blue", find=find, k=20, mode=mode)
    assert [each["id"] for each in said["results"]] == expected.ids
    assert [each["score"] for each in said["results"]] == pytest.approx([each.score for each in expected], abs=1e-5)
    assert said["mode"] == mode
    assert said["of"] == expected.of
    assert said["query"]["text"] == "something blue"


def test_an_item_finds_what_is_like_it_and_not_itself(reader, index):
    said = reader.post("/api/v1/search", json={"item": "blue.png"}).json()
    assert [each["id"] for each in said["results"]] == index.search(item="blue.png", k=24).ids
    assert "blue.png" not in [each["id"] for each in said["results"]]
    from_text = reader.post("/api/v1/search", json={"item": "blue.png#1", "side": "text", "find": "text"}).json()
    assert [each["id"] for each in from_text["results"]] == index.search(item="blue.png#1", find="text", k=24).ids
    error(reader.post("/api/v1/search", json={"item": "blue.png", "side": "text"}), 404, "not_found")


def test_an_id_on_both_sides_finds_what_it_finds_on_one(tmp_path):
    """The item is no duplicate, and its perfect score is no part of the relevance cut."""
    vectors = np.random.default_rng(0).normal(size=(60, 1, 32)).astype(np.float32)
    vectors[1:4] = vectors[0] + 0.05 * vectors[1:4]  # near-duplicates of the item, and of each other
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    texts = VectorBatch("text", [Entry(f"{i}") for i in range(60)], vectors)
    asked = SearchRequest(item="0", side="text", find="text", k=20, dedupe=True, relevant=True)
    with Index.create(tmp_path / "index", Manifest("mine", {"image": 1, "text": 1}, 32, {"name": "cosine"})) as index:
        index.add(texts)
        expected = run_search(index, asked, None)
        assert sorted([expected[0].id, *expected[0].duplicates]) == ["1", "2", "3"]
        index.add(VectorBatch("image", [Entry("0")], -vectors[:1]))
        found = run_search(index, asked, None)
        assert replace(found, seconds=0) == replace(expected, seconds=0)
        assert found.ids == index.search(item="0", item_side="text", find="text", k=20, dedupe=True).ids
        assert index.search(item="0", find="text", k=1).ids != found.ids[:1]  # by default the image
        with pytest.raises(InputError, match="no image '1'"):
            index.search(item="1", item_side="image")
        with pytest.raises(InputError, match="give an item"):
            index.search(vectors=vectors[0], item_side="image")


def test_an_uploaded_picture_finds_its_twin(reader, photos):
    data = (photos / "green.png").read_bytes()
    sent = reader.post("/api/v1/uploads", files={"file": ("x.png", data, "image/png")}).json()
    assert 3000 < sent["expires"] <= 3600
    found = reader.post("/api/v1/search", json={"image": sent["image"]}).json()["results"]
    assert found[0]["id"] == "green.png"
    small = reader.get(f"/api/v1/uploads/{sent['image']}/thumbnail")
    assert small.headers["content-type"] == "image/jpeg"
    assert small.content[:2] == b"\xff\xd8"
    error(reader.post("/api/v1/search", json={"image": "no-such-token"}), 404, "not_found")


def test_pages_together_are_the_whole(reader):
    whole = reader.post("/api/v1/search", json={"text": "a red picture", "find": "text", "k": 8}).json()["results"]
    pages = [
        reader.post("/api/v1/search", json={"text": "a red picture", "find": "text", "k": 3, "offset": offset}).json()
        for offset in (0, 3, 6)
    ]
    assert [each for page in pages for each in page["results"]] == whole
    assert [each["rank"] for each in pages[1]["results"]] == [4, 5, 6]


def test_filters_relevance_and_duplicates(reader):
    asked = {"text": "a picture", "filter": "year >= 2021 and label in ('blue', 'white', 'red')"}
    found = reader.post("/api/v1/search", json=asked).json()
    assert {each["id"] for each in found["results"]} == {"blue.png", "white.png"}
    assert found["results"][0]["metadata"]["year"] in (2021, 2022)
    assert all(each["relevant"] is None for each in found["results"])
    assert found["cut"] is None
    marked = reader.post("/api/v1/search", json={"text": "a picture", "relevant": True, "dedupe": True}).json()
    assert marked["cut"]["explained"]
    assert {each["relevant"] for each in marked["results"]} <= {True, False}
    folded = sum(1 + len(each["duplicates"]) for each in marked["results"])
    assert folded == 4


def test_the_address_says_the_same_as_the_body(reader):
    by_address = reader.get("/api/v1/search", params={"q": "a red picture", "k": 2, "filter": "label = 'red'"}).json()
    by_body = reader.post("/api/v1/search", json={"text": "a red picture", "k": 2, "filter": "label = 'red'"}).json()
    assert by_address["results"] == by_body["results"]
    assert "one thing" in error(reader.get("/api/v1/search"), 400, "bad_request")
    mistaken = reader.get("/api/v1/search", params={"q": "a", "where": "label = 'red'"})
    assert "'where'" in error(mistaken, 400, "bad_request")


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"text": "a", "item": "b"},
        {"text": ""},
        {"text": "   "},
        {"text": "x" * 1001},
        {"text": "a\0b"},
        {"text": "a", "k": 0},
        {"text": "a", "k": True},
        {"text": "a", "k": "3"},
        {"text": "a", "relevant": "yes"},
        {"text": "a", "k": 201},
        {"text": "a", "k": 200, "offset": 900},
        {"text": "a", "find": "video"},
        {"text": "a", "mode": "slow"},
        {"text": "a", "colour": "red"},
        {"text": "a", "side": "image"},
        {"text": "a", "filter": "year >"},
        {"text": "a", "filter": "(" * 500},
        {"text": "a", "filter": "year > 1e999"},
        {"text": ["a"]},
        [],
        "text",
    ],
    ids=lambda asked: str(asked)[:40],
)
def test_what_cannot_be_searched_is_told(reader, asked):
    assert error(reader.post("/api/v1/search", json=asked), 400, "bad_request")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 30000, b'{"text": "\\ud800"}', b'{"text": NaN}'])
def test_a_body_that_is_no_json_is_told(reader, body):
    sent = reader.post("/api/v1/search", content=body, headers={"Content-Type": "application/json"})
    error(sent, 400, "bad_request")


def test_a_body_of_another_kind_is_refused(reader):
    plain = reader.post("/api/v1/search", content=b'{"text": "a"}', headers={"Content-Type": "text/plain"})
    error(plain, 415, "unsupported")


def test_the_position_of_a_filter_error_is_shown(reader):
    said = error(reader.post("/api/v1/search", json={"text": "a", "filter": "year >> 3"}), 400, "bad_request")
    assert "^" in said or ">" in said


def test_many_clients_at_once_get_each_their_own(reader, index):
    texts = [f"{colour} {number}" for colour in COLOURS for number in range(8)]
    answers: dict[str, list[str]] = {}

    def ask(text: str) -> None:
        where = f"label = '{text.split()[0]}' or year > {2000 + int(text.split()[1])}"
        said = reader.post("/api/v1/search", json={"text": text, "k": 4, "filter": where})
        answers[text] = [each["id"] for each in said.json()["results"]]

    threads = [threading.Thread(target=ask, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {text: index.search(text, k=4).ids for text in texts}


def test_an_upload_that_is_no_picture_is_refused(reader):
    error(reader.post("/api/v1/uploads", files={"file": ("x.png", b"<html>", "image/png")}), 400, "bad_request")
    error(reader.post("/api/v1/uploads", files={"other": ("x.png", picture(), "image/png")}), 400, "bad_request")
    error(reader.post("/api/v1/uploads", data={"file": "text"}), 400, "bad_request")


def test_a_model_whose_vectors_have_other_lengths_is_served(tmp_path, photos, monkeypatch):
    """Label-wise models as released do not normalise; the index holds unit vectors, and cosine ignores the length."""
    single = tiny_model(tmp_path, {"name": "cosine"}, k=1)
    place = make_index(tmp_path / "index", single, photos)
    with client(place, single) as made:
        wanted = made.post("/api/v1/search", json={"text": "a red picture"}).json()["results"]
    real = type(single).encode_texts
    monkeypatch.setattr(type(single), "encode_texts", lambda self, texts: 3 * real(self, texts))
    with client(place, single) as made:
        found = made.post("/api/v1/search", json={"text": "a red picture"}).json()["results"]
    assert [(each["id"], each["score"]) for each in found] == [
        (each["id"], pytest.approx(each["score"], abs=1e-6)) for each in wanted
    ]


@pytest.mark.milvus
def test_an_index_in_milvus_is_served_like_a_folder(tmp_path, model, photos):
    pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    place = f"milvus+lite:{tmp_path}/photos.db/photos"
    with Index.create(tmp_path / "index", model, store=place) as index:
        index.add(photos)
    with client(tmp_path / "index", model) as made:
        found = made.post("/api/v1/search", json={"item": "blue.png"}).json()["results"]
        assert sorted(each["id"] for each in found) == ["green.png", "red.png", "white.png"]
        measured = made.get("/api/v1/model").json()
        assert measured["sample"] == {"image": 4, "text": 8, "pairs": 8}
        assert measured["slots"]["image"]["effective"] > 0
        wait_until(lambda: made.get("/api/v1/map?method=pca").json()["ready"])
        assert len(made.get("/api/v1/map?method=pca").json()["points"]) == 2 * (4 + 8)
