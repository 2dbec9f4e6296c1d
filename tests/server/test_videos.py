"""Videos over HTTP: moments in results, files in parts, frames as pictures, explanations along time."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from polysem.models import Model
from polysem.search import Entry, Index, VectorBatch
from polysem.server import media as parts
from polysem.server.errors import ApiError
from search.photos import COLOURS
from search.videos import CAPTIONS, FRAMES, feature_model, make_features, make_videos, raw_model, write_video
from server.running import client, error, make_index

VIDEO = "/api/v1/items/video1/video"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return raw_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_videos(tmp_path_factory.mktemp("clips") / "clips")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model: Model, clips: Path) -> Iterator[TestClient]:
    with client(make_index(tmp_path_factory.mktemp("videos") / "index", model, clips), model) as made:
        yield made


@pytest.fixture(scope="module")
def content(clips: Path) -> bytes:
    return (clips / "videos" / "video1.mp4").read_bytes()


# ---------------------------------------------------------------------------------------------------------- results


def test_results_of_videos_tell_the_moment_and_where_the_video_is(served: TestClient) -> None:
    for found in served.post("/api/v1/search", json={"text": "something red"}).json()["results"]:
        moment = found["moment"]
        assert found["video"] == f"/api/v1/items/{found['id']}/video"
        assert len(moment["curve"]) == FRAMES
        assert moment["start"] <= moment["time"] <= moment["end"] <= 6.1
        assert moment["score"] == max(moment["curve"])
        assert moment["text"].startswith("0:0")
    texts = served.post("/api/v1/search", json={"text": "something red", "find": "text"}).json()["results"]
    assert [each["moment"] for each in texts] == [None] * 8


def test_more_like_a_video_has_moments_too(served: TestClient) -> None:
    found = served.get("/api/v1/search", params={"item": "video0"}).json()["results"]
    assert len(found) == 3
    assert all(each["moment"] for each in found)


def test_pictures_have_neither_video_nor_moment(reader: TestClient) -> None:
    (first, *_) = reader.post("/api/v1/search", json={"text": "something red"}).json()["results"]
    assert (first["video"], first["moment"]) == (None, None)
    assert reader.get("/api/v1/items/red.png").json()["video"] is None
    error(reader.get("/api/v1/items/red.png/video"), 404, "not_found")


# ------------------------------------------------------------------------------------------------------------ parts


def test_a_whole_video_is_the_file(served: TestClient, content: bytes) -> None:
    found = served.get(VIDEO)
    assert found.status_code == 200
    assert found.content == content
    assert found.headers["content-type"] == "video/mp4"
    assert found.headers["accept-ranges"] == "bytes"
    assert int(found.headers["content-length"]) == len(content)
    assert "sandbox" in found.headers["content-security-policy"]
    again = served.get(VIDEO, headers={"If-None-Match": found.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-", 0, None),
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("bytes=10-99999999999", 10, None),
        ("bytes=-7", -7, None),
        ("bytes=-99999999999", 0, None),
        (" bytes=5-6 ", 5, 7),
    ],
)
def test_a_range_is_those_bytes(served: TestClient, content: bytes, asked: str, start: int, end: int | None) -> None:
    found = served.get(VIDEO, headers={"Range": asked})
    assert found.status_code == 206
    assert found.content == content[start:end]
    first, last, size = (
        slice(start, end).indices(len(content))[0],
        slice(start, end).indices(len(content))[1] - 1,
        len(content),
    )
    assert found.headers["content-range"] == f"bytes {first}-{last}/{size}"
    assert int(found.headers["content-length"]) == len(found.content)


@pytest.mark.parametrize("asked", ["bytes={size}-", "bytes=99999999999-", "bytes=-0", "bytes=999999999999999-"])
def test_a_range_behind_the_end_is_refused_with_the_size(served: TestClient, content: bytes, asked: str) -> None:
    found = served.get(VIDEO, headers={"Range": asked.format(size=len(content))})
    error(found, 416, "no_such_range")
    assert found.headers["content-range"] == f"bytes */{len(content)}"


@pytest.mark.parametrize(
    "asked",
    [
        "bytes=",
        "bytes=-",
        "bytes=5-2",
        "bytes=a-b",
        "bytes=0x10-",
        "bytes=1-2,4-5",
        "bytes=" + ",".join(["0-0"] * 5000),
        "bytes=" + "9" * 4000 + "-",
        "bytes=--5",
        "bytes=-5-",
        "items=0-5",
        "bytes=٣-٥",
        "bytes=1-2\t3",
    ],
)
def test_a_range_that_is_none_is_passed_over(served: TestClient, content: bytes, asked: str) -> None:
    found = served.get(VIDEO, headers={"Range": asked.encode()})
    assert found.status_code == 200
    assert found.content == content


def test_no_answer_holds_more_than_a_part(served: TestClient, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART", 100)
    got = b""
    while len(got) < len(content):
        found = served.get(VIDEO, headers={"Range": f"bytes={len(got)}-"})
        assert found.status_code == 206
        assert 0 < len(found.content) <= 100
        got += found.content
        if len(got) > 1000:
            break
    assert got == content[: len(got)]


def test_a_range_of_another_version_of_the_file_gives_the_whole(served: TestClient, content: bytes) -> None:
    tag = served.get(VIDEO).headers["etag"]
    same = served.get(VIDEO, headers={"Range": "bytes=3-5", "If-Range": tag})
    assert (same.status_code, same.headers["etag"]) == (206, tag)
    other = served.get(VIDEO, headers={"Range": "bytes=3-5", "If-Range": '"older"'})
    assert (other.status_code, other.content) == (200, content)


# ----------------------------------------------------------------------------------------------------------- safety


@pytest.fixture
def odd(tmp_path: Path, model: Model, clips: Path) -> Iterator[tuple[TestClient, Path]]:
    """An index of videos whose files are no longer what they were."""
    folder = tmp_path / "files"
    folder.mkdir()
    vectors = np.eye(16, dtype=np.float32)[:6, None]
    names = ["text.mp4", "link.mp4", "gone.mp4", "folder.mp4", "page.webm", "cut.mp4"]
    with Index.create(tmp_path / "index", model) as index:
        index.add(VectorBatch("image", [Entry(name, path=str(folder / name)) for name in names], vectors))
    secret = write_video(tmp_path / "secret.mp4", [(1, 2, 3)])
    (folder / "text.mp4").write_text("root:x:0:0")
    (folder / "link.mp4").symlink_to(secret)
    (folder / "folder.mp4").mkdir()
    (folder / "page.webm").write_text("<html><script>alert(1)</script>")
    (folder / "cut.mp4").write_bytes((clips / "videos" / "video0.mp4").read_bytes()[:200])
    with client(tmp_path / "index", model) as made:
        yield made, folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text.mp4", "link.mp4", "gone.mp4", "folder.mp4", "page.webm"])
@pytest.mark.parametrize("ranged", [True, False])
def test_what_is_no_video_or_leads_elsewhere_is_not_given_out(odd: Any, name: str, ranged: bool) -> None:
    served, _ = odd
    headers = {"Range": "bytes=0-3"} if ranged else {}
    error(served.get(f"/api/v1/items/{name}/video", headers=headers), 404, "not_found")
    error(served.get(f"/api/v1/items/{name}/image", params={"size": 160}), 404, "not_found")
    error(served.post("/api/v1/explain", json={"item": name, "text": "a red dog"}), 404, "not_found")


def test_a_video_that_was_cut_short_has_no_frame_to_show(odd: Any) -> None:
    served, _ = odd
    error(served.get("/api/v1/items/cut.mp4/image", params={"at": 1}), 404, "not_found")
    assert served.get("/api/v1/items/cut.mp4/video").status_code == 200  # it is what it is


@pytest.mark.parametrize("key", ["..%2F..%2Fetc%2Fpasswd", "%2Fetc%2Fpasswd", "video1%00", "nobody"])
def test_no_part_of_a_path_comes_from_the_address(served: TestClient, key: str) -> None:
    error(served.get(f"/api/v1/items/{key}/video"), 404, "not_found")


def test_a_playlist_that_calls_itself_a_video_is_not_followed(tmp_path: Path) -> None:
    from polysem.data.video import VideoError, load_still

    write_video(tmp_path / "secret.mp4", [(1, 2, 3)])
    playlist = tmp_path / "list.mp4"
    playlist.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile://{tmp_path}/secret.mp4\n#EXT-X-ENDLIST\n")
    with pytest.raises(VideoError):
        load_still(playlist)
    with pytest.raises(ApiError):
        parts.read_frame(str(playlist), None, 160, 10**6)


# ------------------------------------------------------------------------------------------------- frames as pictures


def colour_of(response: Any) -> tuple[int, int, int]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "image/jpeg"
    image = Image.open(io.BytesIO(response.content))
    return image.getpixel((image.width // 2, image.height // 2))  # type: ignore[return-value]


def test_a_frame_is_the_one_at_its_time(served: TestClient) -> None:
    usual, other = (COLOURS[name] for name in ("green", "blue"))  # video1: the other in seconds 3 to 5
    expected_at = {0: usual, 2.8: usual, 2.987: usual, 3.01: other, 3.3: other, 4.7: other, 5.5: usual, 900: usual}
    for at, expected in expected_at.items():
        found = colour_of(served.get("/api/v1/items/video1/image", params={"size": 160, "at": at}))
        assert np.abs(np.subtract(found, expected)).max() < 25, (at, found)
    middle = served.get("/api/v1/items/video1/image")
    assert np.abs(np.subtract(colour_of(middle), other)).max() < 25
    tag = middle.headers["etag"]
    assert served.get("/api/v1/items/video1/image", headers={"If-None-Match": tag}).status_code == 304
    assert served.get("/api/v1/items/video1/image?at=1", headers={"If-None-Match": tag}).status_code == 200


@pytest.mark.parametrize("at", ["-1", "nan", "inf", "1e300", "soon"])
def test_a_time_that_is_none_is_refused(served: TestClient, at: str) -> None:
    error(served.get("/api/v1/items/video1/image", params={"at": at}), 400, "bad_request")


def test_frames_larger_than_the_limit_are_not_unfolded(clips: Path) -> None:
    path = str(clips / "videos" / "video0.mp4")
    assert parts.read_frame(path, 1.0, 160, 48 * 48)
    with pytest.raises(ApiError):
        parts.read_frame(path, 1.0, 160, 48 * 48 - 1)


def test_a_file_that_grows_is_given_out_as_long_as_announced(tmp_path: Path) -> None:
    path = write_video(tmp_path / "growing.mp4", [(9, 9, 9)])
    found = parts.VideoFile.open(str(path))
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"more")
    os.sync()
    assert len(b"".join(found)) == size
    assert found.file.closed


# ------------------------------------------------------------------------------------------------------ explanations


def test_a_video_is_explained_along_its_frames(served: TestClient) -> None:
    asked = {"item": "video1", "text": "something red"}
    told = served.post("/api/v1/explain", json=asked).json()
    film = told["film"]
    assert len(film["times"]) == len(film["scores"]) == len(film["adds"]) == FRAMES
    assert film["times"] == pytest.approx([(n + 0.5) for n in range(FRAMES)], abs=0.1)
    assert sum(film["adds"]) == pytest.approx(told["score"], abs=1e-4)
    assert told["elements"][0]["attention"]["kind"] == "frames"
    assert sum(told["elements"][0]["attention"]["values"]) == pytest.approx(1, abs=1e-4)
    # The same moment that the search found, up to the rounding of what is stored.
    found = served.post("/api/v1/search", json={"text": "something red"}).json()["results"]
    moment = next(each["moment"] for each in found if each["id"] == "video1")
    assert film["scores"] == pytest.approx(moment["curve"], abs=3e-3)


@pytest.mark.parametrize("sets", ["gpo", "slots"])
def test_frame_features_are_explained_without_a_file_to_play(tmp_path: Path, sets: str) -> None:
    made, clips = feature_model(sets), make_features(tmp_path / "clips")
    with client(make_index(tmp_path / "index", made, clips), made) as served:
        told = served.post("/api/v1/explain", json={"item": "video0", "text": "something red"}).json()
        assert told["film"]["times"] is None
        assert len(told["film"]["scores"]) == 5
        asked = {"text": "something red", "filter": "id = 'video0'"}
        (found,) = served.post("/api/v1/search", json=asked).json()["results"]
        assert (found["video"], found["image"], found["moment"]["time"]) == (None, None, None)
        assert found["moment"]["text"].startswith("frame")


def test_the_map_and_the_model_of_an_index_of_videos_are_there(served: TestClient) -> None:
    from waiting import wait_until

    wait_until(lambda: served.get("/api/v1/map?method=pca").json()["ready"])
    points = served.get("/api/v1/map?method=pca").json()["points"]
    assert {point["id"] for point in points if point["side"] == "image"} == set(CAPTIONS)
    assert served.get("/api/v1/stats").json()["items"] == {"image": 4, "text": 8}
    assert served.get("/api/v1/model").status_code == 200
