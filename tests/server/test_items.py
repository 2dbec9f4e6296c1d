"""Items over HTTP: their facts, their pictures and no others, and changes that are whole."""

from __future__ import annotations

import io
import json
import os
import threading
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

from polysem.search import Entry, Index, VectorBatch
from server.running import BEARER, client, error, picture

ODD = ["a/b c/ü.png", "x/image", "../../etc/passwd", "a%2Fb", "?q#f&", "日本/犬.jpg", "a\nb", " ", "...", "😀"]


def send(writer, data, about=None, **headers):
    form = {} if about is None else {"item": about if isinstance(about, str) else json.dumps(about)}
    files = {"file": ("name.png", data, "image/png")}
    return writer.post("/api/v1/items", files=files, data=form, headers={**BEARER, **headers})


# -------------------------------------------------------------------------------------------------------- reading


def test_an_item_is_told_with_its_captions(reader):
    said = reader.get("/api/v1/items/red.png").json()
    assert said["side"] == "image"
    assert said["labels"] == ["red"]
    assert said["metadata"]["year"] == 2019
    assert [each["id"] for each in said["captions"]] == ["red.png#0", "red.png#1"]
    text = reader.get(f"/api/v1/items/{quote('red.png#1', safe='')}").json()
    assert (text["side"], text["caption"], text["captions"]) == ("text", "something red", [])
    error(reader.get("/api/v1/items/none.png"), 404, "not_found")
    error(reader.get("/api/v1/items/red.png?side=text"), 404, "not_found")


def test_a_picture_is_given_out_as_it_is_or_small(reader, photos):
    whole = reader.get("/api/v1/items/red.png/image")
    assert whole.content == (photos / "red.png").read_bytes()
    assert whole.headers["content-type"] == "image/png"
    small = reader.get("/api/v1/items/red.png/image?size=16")
    assert small.headers["content-type"] == "image/jpeg"
    assert max(Image.open(io.BytesIO(small.content)).size) <= 160
    again = reader.get("/api/v1/items/red.png/image?size=16", headers={"If-None-Match": small.headers["etag"]})
    assert again.status_code == 304
    of_caption = reader.get(f"/api/v1/items/{quote('red.png#0', safe='')}/image?side=text")
    assert of_caption.content == whole.content


def test_a_thumbnail_of_a_large_photo_is_quick_and_upright(own_place, model, tmp_path, monkeypatch):
    from polysem.server import media

    decoded, thumbnail = [], media.encode_thumbnail

    def watched(image, size):
        decoded.append(image.size)
        return thumbnail(image, size)

    monkeypatch.setattr(media, "encode_thumbnail", watched)
    turned = Image.new("RGB", (4000, 3000), "red")
    turned.paste("blue", (0, 0, 4000, 1500))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter to the right
    turned.save(tmp_path / "large.jpg", exif=exif)
    with Index.open(own_place, write=True, model=model) as index:
        index.add(index.collect_files([tmp_path / "large.jpg"]))
        (item,) = [each for each in index.sample("image", 9) if each.id.endswith("large.jpg")]
    with client(own_place, model) as made:
        address = f"/api/v1/items/{quote(item.id, safe='')}/image?size=160"
        small = Image.open(io.BytesIO(made.get(address).content))
        assert small.size == (120, 160)
        assert decoded == [(375, 500)], "an eighth of it each way was decoded, which is what makes it quick"
        assert small.getpixel((110, 80))[2] > 200  # the top has become the right
        kept = made.app.state.polysem.thumbnails
        assert len(kept) == 1
        made.get(address)
        made.get(address.replace("160", "100"))  # the same one: sizes go in steps
        assert (len(kept), len(decoded)) == (1, 1)
        assert 0 < kept.currsize < 20_000


@pytest.mark.parametrize("size", ["0", "-1", "15", "99999", "x", "1e3"])
def test_odd_sizes_are_refused(reader, size):
    error(reader.get(f"/api/v1/items/red.png/image?size={size}"), 400, "bad_request")


@pytest.mark.parametrize(
    "address",
    [
        "/api/v1/items/../../../../etc/passwd/image",
        "/api/v1/items/..%2f..%2f..%2fetc%2fpasswd/image",
        "/api/v1/items/%2e%2e/%2e%2e/image",
        "/api/v1/items//etc/passwd/image",
        "/api/v1/items/%00/image",
        "/api/v1/items/%ff/image",
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static/....//app.py",
        "/docs/static/..%2f..%2fapp.py",
        "/static//etc/passwd",
        "/static/%00",
    ],
)
def test_no_path_comes_from_an_address(reader, address):
    raw = reader.build_request("GET", "/")
    raw.url = raw.url.copy_with(raw_path=address.encode())
    found = reader.send(raw)
    assert found.status_code in (400, 404), found.text
    assert b"root:" not in found.content
    assert b"import" not in found.content


@pytest.fixture
def linked(tmp_path, model):
    """An index whose pictures are of many kinds, as they are on disk afterwards."""
    folder, elsewhere = tmp_path / "pictures", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (elsewhere / "secret.png").write_bytes(picture())
    (folder / "good.png").write_bytes(picture())
    (folder / "inside.png").symlink_to(folder / "good.png")
    (folder / "outside.png").symlink_to(elsewhere / "secret.png")
    (folder / "text.png").write_text("root:x:0:0")
    (folder / "circle.png").symlink_to(folder / "circle.png")
    (folder / "folder.png").mkdir()
    os.mkfifo(folder / "pipe.png")
    (folder / "sub").symlink_to(elsewhere)
    names = ["good", "inside", "outside", "text", "circle", "folder", "pipe", "gone"]
    paths = {name: str(folder / f"{name}.png") for name in names}
    paths |= {"features": str(folder / "x.npy"), "odd": "a\udcff.png".encode("utf-8", "replace").decode()}
    entries = [Entry(name, path) for name, path in paths.items()] + [Entry("nowhere", None)]
    vectors = np.random.default_rng(0).normal(size=(len(entries), 2, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    with Index.create(tmp_path / "index", model) as index:
        index.add(VectorBatch("image", entries, vectors))
    with client(tmp_path / "index", model) as made:
        yield made


@pytest.mark.parametrize("size", ["", "?size=160"])
def test_links_that_lead_elsewhere_and_what_is_no_picture_are_not_given_out(linked, size):
    for name in ("good", "inside"):
        assert linked.get(f"/api/v1/items/{name}/image{size}").status_code == 200
    for name in ("outside", "text", "circle", "folder", "pipe", "gone", "features", "odd", "nowhere"):
        found = linked.get(f"/api/v1/items/{name}/image{size}")
        error(found, 404, "not_found")
    assert linked.get("/api/v1/items/nowhere").json()["image"] is None


# -------------------------------------------------------------------------------------------------------- writing


def test_a_picture_is_added_found_replaced_and_removed(writer, own_place):
    about = {"id": "new.png", "captions": ["a new thing"], "labels": ["new"], "metadata": {"year": 2030, "odd": None}}
    made = send(writer, picture(seed=1), about)
    assert made.status_code == 201, made.text
    assert made.json() == {"id": "new.png", "new": 2, "replaced": 0, "unchanged": 0, "removed": 0}
    found = writer.post("/api/v1/search", json={"text": "new", "filter": "year = 2030"}).json()["results"]
    assert [each["id"] for each in found] == ["new.png"]
    assert writer.get(found[0]["image"]).content == picture(seed=1)
    assert send(writer, picture(seed=1), about).json()["unchanged"] == 2
    replaced = send(writer, picture(seed=2), {**about, "captions": []}).json()
    assert (replaced["replaced"], replaced["removed"]) == (1, 1)
    assert writer.get(found[0]["image"]).content == picture(seed=2)
    assert len(list((own_place / "pictures").iterdir())) == 1, "the picture that was replaced is gone"
    assert writer.delete("/api/v1/items/new.png", headers=BEARER).json() == {"removed": 1}
    error(writer.get("/api/v1/items/new.png"), 404, "not_found")
    error(writer.delete("/api/v1/items/new.png", headers=BEARER), 404, "not_found")
    assert not list((own_place / "pictures").iterdir())


def test_removing_takes_the_captions_and_leaves_the_users_own_file(writer, photos):
    assert writer.delete("/api/v1/items/red.png", headers=BEARER).json() == {"removed": 3}
    assert (photos / "red.png").exists()
    assert writer.get("/api/v1/stats").json()["items"] == {"image": 3, "text": 6}


def test_a_picture_two_items_share_stays_with_the_other(writer, own_place):
    send(writer, picture(), {"id": "one"})
    send(writer, picture(), {"id": "two"})
    writer.delete("/api/v1/items/one", headers=BEARER)
    assert writer.get("/api/v1/items/two/image").content == picture()


@pytest.mark.slow
@pytest.mark.parametrize("key", ODD)
def test_any_id_is_found_again(writer, key):
    assert send(writer, picture(), {"id": key}).json()["id"] == key
    address = f"/api/v1/items/{quote(key, safe='')}"
    assert writer.get(address).json()["id"] == key
    assert writer.get(f"{address}/image").content == picture()
    assert writer.delete(address, headers=BEARER).json() == {"removed": 1}


@pytest.mark.parametrize(
    "about",
    [
        "no json",
        "[]",
        {"id": ""},
        {"id": "a\0"},
        {"id": ".."},
        {"id": "x" * 1025},
        {"captions": "one"},
        {"captions": ["x"] * 33},
        {"captions": [" "]},
        {"metadata": {"a": {"b": 1}}},
        {"metadata": {"a": 2**70}},
        {"metadata": {'a"b': 1}},
        '{"metadata": {"a": NaN}}',
        '{"id": "\\ud800"}',
        {"colour": "red"},
    ],
    ids=str,
)
@pytest.mark.slow
def test_what_cannot_be_kept_is_refused_and_nothing_is_added(writer, about):
    error(send(writer, picture(), about), 400, "bad_request")
    assert writer.get("/api/v1/stats").json()["items"]["image"] == 4


def test_without_an_id_the_content_is_the_id(writer):
    first = send(writer, picture()).json()
    assert send(writer, picture()).json() == {**first, "new": 0, "unchanged": 1}


def test_while_another_process_writes_clients_are_told_to_wait(writer, own_place, model):
    with Index.open(own_place, write=True, model=model):
        busy = writer.delete("/api/v1/items/red.png", headers=BEARER)
        error(busy, 503, "overloaded")
        assert busy.headers["retry-after"] == "1"
        assert writer.get("/api/v1/items/red.png").status_code == 200
    assert writer.delete("/api/v1/items/red.png", headers=BEARER).status_code == 200


def test_changes_of_another_process_are_seen(writer, own_place, model):
    with Index.open(own_place, write=True, model=model) as other:
        other.remove(["green.png"])
    assert writer.get("/api/v1/stats").json()["items"] == {"image": 3, "text": 6}
    labels = writer.get("/api/v1/stats").json()["filters"]["text"]["labels"]
    assert sorted(labels) == [["blue", 2], ["red", 2], ["white", 2]]


def test_many_writers_take_turns(writer):
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: statuses.append(send(writer, picture(seed=n), {"id": str(n)}).status_code))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [201] * 8
    assert writer.get("/api/v1/stats").json()["items"]["image"] == 12


def test_a_write_that_fails_changes_nothing(writer, own_place, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("polysem.atomic_write.os.fsync", full)
    error(send(writer, picture(), {"id": "new"}), 500, "internal")
    error(writer.get("/api/v1/items/new"), 404, "not_found")
    assert not list((own_place / "pictures").iterdir()), "not even half a file"


def test_a_kill_between_picture_and_index_leaves_both_usable(own_place, model, monkeypatch):
    from polysem.search.local import LocalBackend
    from polysem.server.routes.items import add_picture
    from polysem.server.routes.schemas import NewItem

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    index, about = Index.open(own_place, model=model), NewItem(id="new", captions=["words"])
    with monkeypatch.context() as patch:
        patch.setattr(LocalBackend, "add", killed)
        with pytest.raises(Killed):
            add_picture(index, picture(), about, 10**6)
    assert index.items(["new"]) == []
    assert add_picture(index, picture(), about, 10**6)["new"] == 2
    assert [Path(item.path).read_bytes() for item in index.items(["new"])] == [picture()]
