"""Statistics, explanation, map and model over HTTP."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from polysem.inspection import explain
from polysem.search import Entry, Index, VectorBatch
from search.photos import make_photos, tiny_model
from server.running import client, error, make_index
from waiting import finish, wait_until


def test_stats_say_what_is_there_and_what_one_can_filter_by(reader, model):
    said = reader.get("/api/v1/stats").json()
    assert said["items"] == {"image": 4, "text": 8}
    assert said["model"]["fingerprint"] == model.fingerprint()
    assert said["model"]["sets"] == {"image": 2, "text": 2}
    assert said["modes"] == ["exact", "fast"]
    assert (said["writable"], said["token"], said["audit"]) == (False, "none", None)
    for side, each in (("image", 1), ("text", 2)):
        filters = said["filters"][side]
        assert sorted(filters["labels"]) == [[name, each] for name in ("blue", "green", "red", "white")]
        assert {"name": "year", "kind": "number", "min": 2019, "max": 2022} in filters["metadata"]
        assert (filters["of"], filters["sampled"]) == (4 * each, False)
        for label, count in filters["labels"]:
            asked = {"text": "a", "find": side, "filter": f"label = '{label}'"}
            assert reader.post("/api/v1/search", json=asked).json()["of"] == count


def test_values_to_choose_from_are_found_by_their_filter(tmp_path, model):
    values = [True, True, False, "1", 1, "true", 2.5]
    entries = [Entry(str(n), None, metadata={"mixed": value, "flag": n % 3 == 0}) for n, value in enumerate(values)]
    vectors = np.random.default_rng(0).normal(size=(len(entries), 2, 16)).astype(np.float32)
    with Index.create(tmp_path / "index", model) as index:
        index.add(VectorBatch("image", entries, vectors / np.linalg.norm(vectors, axis=2, keepdims=True)))
    with client(tmp_path / "index", model) as made:
        fields = made.get("/api/v1/stats").json()["filters"]["image"]["metadata"]
        offered = {each["name"]: each["values"] for each in fields if each["kind"] == "choice"}
        assert len(offered["mixed"]) == 6
        assert sorted(offered["flag"]) == [[False, 4], [True, 3]]
        for name, choices in offered.items():
            for value, count in choices:
                written = f"'{value}'" if isinstance(value, str) else json.dumps(value)
                asked = {"text": "a", "filter": f"{name} in ({written})"}
                assert made.post("/api/v1/search", json=asked).json()["of"] == count, written


def test_what_takes_long_to_count_is_counted_once(own_place, model, monkeypatch):
    from polysem.server.routes import overview

    counted = []
    real = overview.count_filter_values

    def slow(index):
        counted.append(1)
        if len(counted) == 1:  # not done before all the others wait for it
            waiting = made.app.state.polysem.computing["filters"]
            wait_until(lambda: len(waiting._waiters or ()) == 5)
        return real(index)

    monkeypatch.setattr(overview, "count_filter_values", slow)
    with client(own_place, model) as made:
        threads = [threading.Thread(target=made.get, args=("/api/v1/stats",)) for _ in range(6)]
        for thread in threads:
            thread.start()
        finish(*threads)
        assert counted == [1]
        with Index.open(own_place, write=True, model=model) as index:
            index.remove(["red.png"])
        assert made.get("/api/v1/stats").json()["filters"]["image"]["of"] == 3
        assert counted == [1, 1]


def test_an_index_audited_by_an_older_version_is_served(own_place, model):
    with Index.open(own_place, write=True, model=model) as index:
        audit = index.verify().audit
        index._backend.write_value("audit", {name: value for name, value in audit.items() if name != "change"})
    with client(own_place, model) as made:
        assert made.get("/api/v1/stats").json()["audit_outdated"] is True


def test_an_audit_is_passed_on(own_place, model):
    with Index.open(own_place, write=True, model=model) as index:
        index.verify()
    with client(own_place, model) as made:
        said = made.get("/api/v1/stats").json()
        assert said["audit"]["recall"]["image to text"]["recall10"] == 1.0
        assert said["audit_outdated"] is False


# ------------------------------------------------------------------------------------------------------ explaining


def test_an_explanation_is_the_inspections_own(reader, model, photos):
    said = reader.post("/api/v1/explain", json={"item": "red.png", "text": "a red picture"}).json()
    expected = explain(model, photos / "red.png", "a red picture")
    assert said["score"] == pytest.approx(expected.score, abs=1e-5)
    assert sum(map(sum, said["contributions"])) == pytest.approx(said["score"], abs=1e-4)
    assert (said["width"], said["height"]) == (50, 40)
    assert len(said["elements"]) == 2
    values = []
    for number, element in enumerate(said["elements"]):
        heat = element["attention"]
        assert element["number"] == number
        assert (heat["kind"], len(heat["values"]), len(heat["values"][0])) == ("grid", heat["rows"], heat["cols"])
        laid_out = expected.places.as_map(expected.image.last[number]).numpy()
        assert np.array(heat["values"]) == pytest.approx(laid_out, abs=1e-5)
        assert all(0 <= side <= 1 for side in heat["window"])
        assert element["iterations"][-1] == heat
        assert element["nearest_caption"]["text"]
        assert sum(word["weight"] for word in element["words"]) == pytest.approx(1, abs=1e-4)
        values += [value for row in heat["values"] for value in row]
    assert said["scale"] == pytest.approx({"min": min(values), "max": max(values)})
    assert [word["word"] for word in said["text"]["elements"][0]["words"]] == [word.text for word in expected.words]


def test_an_explanation_says_where_in_the_picture_the_words_are(reader, model, photos):
    said = reader.post("/api/v1/explain", json={"item": "red.png", "text": "a red car on a road"}).json()["maps"]
    expected = explain(model, photos / "red.png", "a red car on a road")
    assert [each["phrase"] for each in said] == [None, "a red car", "a road"]
    assert [each["score"] for each in said[1:]] == pytest.approx(
        [each.score for each in expected.phrase_maps], abs=1e-5
    )
    said, found = said[0], expected.score_map
    assert said["how"] == found.how
    laid_out = expected.places.as_map(found.values).numpy()
    assert np.array(said["attention"]["values"]) == pytest.approx(laid_out, abs=1e-5)
    assert said["max"] == pytest.approx(float(laid_out.max()), abs=1e-5)
    assert (said["placeless"] is None) == (found.how == "omission")


def test_the_score_explained_is_the_score_found(reader):
    found = reader.post("/api/v1/search", json={"text": "something blue"}).json()["results"][0]
    said = reader.post("/api/v1/explain", json={"item": found["id"], "text": "something blue"}).json()
    assert said["score"] == pytest.approx(found["score"], abs=1e-4)


def test_a_text_of_the_index_explains_too(reader):
    by_item = reader.post("/api/v1/explain", json={"item": "red.png", "with": "red.png#1"}).json()
    by_words = reader.post("/api/v1/explain", json={"item": "red.png", "text": "something red"}).json()
    assert by_item == by_words


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"item": "red.png"}, 400),
        ({"item": "red.png", "text": "a", "with": "b"}, 400),
        ({"item": "red.png", "text": " "}, 400),
        ({"item": "none", "text": "a"}, 404),
        ({"item": "red.png#0", "text": "a"}, 404),
        ({"item": "red.png", "with": "none"}, 404),
        ({"text": "a"}, 400),
    ],
)
def test_what_cannot_be_explained_is_told(reader, asked, status):
    error(reader.post("/api/v1/explain", json=asked), status, {400: "bad_request", 404: "not_found"}[status])


def test_a_picture_that_is_gone_cannot_be_explained(tmp_path, model):
    photos = make_photos(tmp_path / "photos")
    with client(make_index(tmp_path / "index", model, photos), model) as made:
        (photos / "red.png").unlink()
        error(made.post("/api/v1/explain", json={"item": "red.png", "text": "a"}), 404, "not_found")


# ------------------------------------------------------------------------------------------------------ map, model


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_the_map_is_made_in_the_background(reader, method):
    address = f"/api/v1/map?method={method}&colour=label"
    first = reader.get(address).json()
    assert first["ready"] in (True, False)
    wait_until(lambda: reader.get(address).json()["ready"])
    said = reader.get(address).json()
    assert len(said["points"]) == 24  # two elements of twelve items
    assert {(point["id"], point["side"], point["slot"]) for point in said["points"]} >= {
        ("red.png", "image", 0),
        ("red.png#1", "text", 1),
    }
    assert set(said["labels"]) == {"red", "green", "blue", "white"}
    assert said["slots"] == 2
    assert said["note"]


def test_the_map_follows_the_index(own_place, model):
    with client(own_place, model) as made:
        address = "/api/v1/map?method=pca"
        wait_until(lambda: made.get(address).json()["ready"])
        with Index.open(own_place, write=True, model=model) as index:
            index.remove(["red.png"])
        wait_until(lambda: made.get(address).json()["ready"])
        assert "red.png" not in {point["id"] for point in made.get(address).json()["points"]}
        few = "/api/v1/map?method=pca&limit=6"
        wait_until(lambda: made.get(few).json()["ready"])
        assert 0 < len(made.get(few).json()["points"]) <= 6


def test_an_empty_index_has_an_empty_everything(tmp_path, model):
    with Index.create(tmp_path / "index", model):
        pass
    with client(tmp_path / "index", model) as made:
        assert made.get("/api/v1/stats").json()["filters"]["image"]["labels"] == []
        wait_until(lambda: made.get("/api/v1/map").json()["ready"])
        assert made.get("/api/v1/map").json()["points"] == []
        assert made.get("/api/v1/model").json()["sample"] == {"image": 0, "text": 0, "pairs": 0}
        asked = {"text": "a", "relevant": True, "dedupe": True}
        assert made.post("/api/v1/search", json=asked).json()["results"] == []


def test_the_model_is_described_by_what_was_measured(own_place, tmp_path):
    model = tiny_model(tmp_path)
    stamp = {"protocol": "toy val, hit rate", "rsum": 100.0}
    model.provenance = {"validation": stamp, "data": {"name": "/home/me/toy"}}
    with client(own_place, model) as made:
        said = made.get("/api/v1/model").json()
    assert said["figures"] == stamp
    assert said["data"] == {"name": "toy"}
    assert said["sample"] == {"image": 4, "text": 8, "pairs": 8}
    assert said["sets"]["image"]["log_variance"] < 0
    assert sum(said["slots"]["text"]["supervision"]) == pytest.approx(1, abs=1e-4)
    assert 1 <= said["slots"]["image"]["effective"] <= 2.0001


def test_single_vectors_have_no_diversity(tmp_path, photos):
    model = tiny_model(tmp_path, k=1)
    with client(make_index(tmp_path / "index", model, photos), model) as made:
        said = made.get("/api/v1/model").json()
        assert said["sets"] == {"image": None, "text": None}
        assert made.post("/api/v1/explain", json={"item": "red.png", "text": "red"}).status_code == 200


def test_metrics_are_prometheus_text(reader):
    reader.post("/api/v1/search", json={"text": "a"})
    reader.get("/api/v1/items/some/made/up/name")
    said = reader.get("/metrics")
    assert said.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name for family in text_string_to_metric_families(said.text)}
    assert {"polysem_requests", "polysem_request_seconds", "polysem_refused"} <= families
    assert 'method="POST",route="/api/v1/search",status="200"' in said.text
    assert "made/up" not in said.text
    for name in (
        "polysem_ready 1.0",
        "polysem_encoded_texts_total",
        "polysem_cache_hits_total",
        "polysem_resident_bytes",
    ):
        assert name in said.text
