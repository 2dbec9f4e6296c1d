"""Moments: which part of a video a search means."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from polysem import LocalFeatures
from polysem.errors import InputError
from polysem.models import Model
from polysem.models.video import MOST, choose_frames, embed_with_frames, find_moment, format_time
from polysem.search import Entry, Index, Manifest, VectorBatch
from search.photos import COLOURS, make_photos, tiny_model
from search.videos import (
    CAPTIONS,
    FRAMES,
    SETS,
    WIDTH,
    feature_model,
    make_features,
    make_videos,
    raw_model,
    write_video,
)

MANIFEST = Manifest("abc", {"image": 2, "text": 2}, 8, {"name": "smooth_chamfer"})


def unit(*shape: int, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_features(tmp_path_factory.mktemp("features") / "clips")


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_videos(tmp_path_factory.mktemp("videos") / "clips")


@pytest.fixture(params=sorted(SETS))
def model(request: pytest.FixtureRequest) -> Model:
    return feature_model(request.param)


@pytest.fixture
def index(tmp_path: Path, features: Path) -> Iterator[Index]:
    with Index.create(tmp_path / "index", feature_model()) as made:
        made.add(features)
        yield made


# ------------------------------------------------------------------------------------------------------- the frames


def test_a_frame_is_embedded_as_if_the_video_had_no_other(model: Model) -> None:
    lengths = (5, 1, 3)
    items = [torch.randn(length, WIDTH, generator=torch.Generator().manual_seed(length)) for length in lengths]
    with torch.inference_mode():
        vectors, frames = embed_with_frames(model.image, LocalFeatures.from_list(items))
        alone = [model.encode_images([frame[None]])[0] for item in items for frame in item]
        torch.testing.assert_close(vectors, model.encode_images(items), atol=1e-6, rtol=0)
        torch.testing.assert_close(torch.cat(frames), torch.stack(alone), atol=1e-5, rtol=0)
    assert [len(each) for each in frames] == list(lengths)


def test_of_a_long_video_frames_at_even_distances_stand_for_all() -> None:
    assert choose_frames(5).tolist() == [0, 1, 2, 3, 4]
    assert choose_frames(10, 3).tolist() == [1, 5, 8]  # the middles of three equal parts
    kept = choose_frames(1000)
    assert len(kept) == MOST
    assert set(np.diff(kept)) <= {15, 16}


# ------------------------------------------------------------------------------------------------------- the moment


def slow_moment(curve: list[float]) -> tuple[int, int, int]:
    """The best frame and how far its neighbours score above two thirds of the height, looked at one by one."""
    best = max(range(len(curve)), key=lambda i: (curve[i], -i))
    floor = min(curve) + 2 / 3 * (max(curve) - min(curve))
    first = last = best
    while first > 0 and curve[first - 1] >= floor:
        first -= 1
    while last < len(curve) - 1 and curve[last + 1] >= floor:
        last += 1
    return best, first, last


@pytest.mark.parametrize("seed", range(40))
def test_a_moment_is_the_best_frame_and_its_like_neighbours(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Coarse values, so that there are ties.
    curve = (rng.integers(0, 5, rng.integers(1, 12)) / 4).tolist()
    found = find_moment(curve, duration=len(curve) * 0.5)
    best, first, last = slow_moment(curve)
    assert (found.frame, found.first, found.last) == (best, first, last)
    assert found.score == max(curve)
    assert (found.time, found.start, found.end) == pytest.approx(((best + 0.5) / 2, first / 2, (last + 1) / 2))
    assert list(found.curve) == curve


def test_a_moment_of_a_video_without_a_length_is_told_in_frames() -> None:
    assert find_moment([0, 1, 0.9, 0]).text == "frames 2–3"
    assert find_moment([0, 1, 0]).text == "frame 2"
    for odd in (float("nan"), -3, 0, "long", True, None):
        assert find_moment([0, 1, 0], odd).time is None  # type: ignore[arg-type]


def test_a_moment_is_told_as_a_clock_tells_it() -> None:
    assert find_moment([0, 0, 1, 1, 0, 0], 12).text == "0:04–0:08"
    assert find_moment([0, 1, 0, 0], 2).text == "0:00.5–0:01.0"
    assert find_moment([0, 1], 7300).text == "1:00:50–2:01:40"
    assert format_time(59.96, 1) == "1:00.0"
    assert format_time(3599.6) == "1:00:00"


@pytest.mark.parametrize("curve", [[], [[1.0]], [float("nan"), 1.0]])
def test_a_curve_that_is_none_is_refused(curve: list[float]) -> None:
    with pytest.raises(InputError, match="finite scores"):
        find_moment(curve)


# ------------------------------------------------------------------------------------------------------- the search


def test_a_search_finds_the_moment_that_scoring_every_frame_by_hand_finds(
    tmp_path: Path, features: Path, model: Model
) -> None:
    with Index.create(tmp_path / "index", model) as index:
        index.add(features)
        for query in ("something red", "a blue picture"):
            asked = model.encode_texts([query])
            for result in index.search(query, find="image"):
                own = np.load(features / "features" / f"{result.id}.npy")[choose_frames(len(np.load(result.path)))]
                if len(own) == 1:
                    assert result.moment is None
                    continue
                sets = torch.cat([model.encode_images([frame[None]]) for frame in own]).half().float()
                expected = model.similarity.scores(asked, sets)[0]
                assert result.moment is not None
                assert result.moment.curve == pytest.approx(expected.tolist(), abs=2e-3)
                assert expected[result.moment.frame] >= expected.max() - 2e-3


def test_a_search_that_starts_from_a_video_has_moments_too(index: Index, features: Path) -> None:
    plain = index.search(item="video0", k=3)
    assert "video0" not in plain.ids
    assert {result.id: result.moment is not None for result in plain} == {
        "video1": False,  # it has a single frame
        "video2": True,
        "video3": True,
    }
    whole = index.search(image=features / "features" / "video0.npy", k=4)
    assert whole[0].id == "video0"
    assert len(whole[0].moment.curve) == 5  # type: ignore[union-attr]
    one = np.load(features / "features" / "video2.npy")[[7]]
    np.save(index.place + "-query.npy", one)
    exact = index.search(image=index.place + "-query.npy", k=4)
    assert next(each for each in exact if each.id == "video2").moment.frame == 7  # type: ignore[union-attr]


def test_moments_change_neither_order_nor_scores(tmp_path: Path, features: Path, index: Index) -> None:
    model = feature_model()
    with Index.create(tmp_path / "plain", model) as plain:
        vectors = torch.cat([model.encode_images([np.load(features / "features" / f"{key}.npy")]) for key in CAPTIONS])
        plain.add(VectorBatch("image", [Entry(key) for key in CAPTIONS], vectors.numpy()))
        without = plain.search("something red")
        assert [result.moment for result in without] == [None] * 4
    found = index.search("something red", find="image")
    assert found.ids == without.ids
    assert [each.score for each in found] == pytest.approx([each.score for each in without], abs=1e-6)


def test_texts_have_no_moment_and_results_are_json(index: Index) -> None:
    import json

    assert all(result.moment is None for result in index.search("something red", find="text"))
    told = json.loads(json.dumps(index.search("something red", where="id = 'video0'").as_dict()))
    assert set(told["items"][0]["moment"]) == {"time", "start", "end", "score", "frame", "first", "last", "curve"}


def test_of_real_videos_the_moment_is_in_seconds(tmp_path: Path, videos: Path) -> None:
    model = raw_model(tmp_path)
    with Index.create(tmp_path / "index", model) as index:
        report = index.add(videos)
        assert (report.new, report.skipped) == (4 + 8, [])
        # video1 shows another colour in seconds 3 to 5: like a picture of that colour.
        colour = COLOURS[list(COLOURS)[2]]
        write_video(tmp_path / "query.mp4", [colour])
        found = next(each for each in index.search(image=tmp_path / "query.mp4", k=4) if each.id == "video1")
        assert found.metadata["duration"] == pytest.approx(6, abs=0.2)
        assert found.moment is not None
        assert len(found.moment.curve) == FRAMES
        assert (found.moment.start, found.moment.end) == pytest.approx((3, 5), abs=0.2)
        assert 3 < found.moment.time < 5  # type: ignore[operator]


def test_a_single_video_is_added_by_its_path(tmp_path: Path, videos: Path) -> None:
    path = write_video(tmp_path / "new.mp4", [(9, 9, 9), (200, 200, 200)])
    with Index.create(tmp_path / "index", raw_model(tmp_path)) as index:
        index.add(videos)
        assert index.add(index.collect_files([path])).new == 1
        assert index.add(index.collect_files([path])).unchanged == 1
        (item,) = index.items([path.as_posix()])
        assert item.metadata["duration"] == pytest.approx(2, abs=0.2)


def test_a_picture_among_videos_has_no_moment(tmp_path: Path, videos: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    with Index.create(tmp_path / "index", raw_model(tmp_path)) as index:
        index.add(index.collect_files([videos / "videos" / "video0.mp4", photos / "red.png", photos / "blue.png"]))
        moments = [each.moment for each in index.search("something red")]
        assert sorted(len(each.curve) for each in moments if each) == [FRAMES]
        assert len(moments) == 3


def test_a_video_that_cannot_be_read_is_left_out_and_named(tmp_path: Path, videos: Path) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    with Index.create(tmp_path / "index", raw_model(tmp_path)) as index:
        report = index.add(index.collect_files([tmp_path / "broken.mp4", videos / "videos" / "video0.mp4"]))
        assert report.new == 1
        assert "broken.mp4" in report.skipped[0].what


def test_a_model_of_pictures_says_that_it_cannot_read_videos(tmp_path: Path, videos: Path) -> None:
    with (
        Index.create(tmp_path / "index", tiny_model(tmp_path)) as index,
        pytest.raises(InputError, match="small-vse-infty-video"),
    ):
        index.add(videos)


# -------------------------------------------------------------------------------------------------------- the store


def tables(index: Index) -> int | None:
    """How many videos' frames the database holds; None if it has no table for them."""
    with sqlite3.connect(Path(index.place) / "index.sqlite") as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'frames'").fetchone():
            return None
        return int(db.execute("SELECT count(*) FROM frames").fetchone()[0])


def test_an_index_of_pictures_has_no_table_of_frames(tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", tiny_model(tmp_path)) as index:
        index.add(make_photos(tmp_path / "photos"))
        assert index.search("something red")[0].moment is None
        assert tables(index) is None


def test_frames_come_and_go_with_their_video(tmp_path: Path, index: Index, features: Path) -> None:
    assert tables(index) == 3  # one of the four has a single frame
    index.remove(["video0"])
    assert tables(index) == 2
    assert all(result.id != "video0" for result in index.search("something red"))
    index.compact()
    assert tables(index) == 2
    assert sum(result.moment is not None for result in index.search("something red", find="image")) == 2
    assert index.add(features).new == 1 + 2  # the video and its captions
    assert tables(index) == 3
    assert list(index.verify().damage) == []


def test_frames_of_a_replaced_video_are_those_of_the_new_one(tmp_path: Path) -> None:
    query, first, second = unit(2, 8), unit(1, 2, 8, seed=1), unit(1, 2, 8, seed=2)
    with Index.create(tmp_path / "index", MANIFEST) as index:
        for place in (4, 1):
            frames = unit(6, 2, 8, seed=5 + place)
            frames[place] = query
            index.add(VectorBatch("image", [Entry("a", metadata={"duration": 6})], first, frames=[frames]))
            assert index.search(vectors=query)[0].moment.frame == place  # type: ignore[union-attr]
        # Without frames this time, and a picture that may get the key of a removed one.
        index.add(VectorBatch("image", [Entry("a")], second))
        assert index.search(vectors=query)[0].moment is None
        index.remove(["a"])
        index.add(VectorBatch("image", [Entry("b")], second))
        assert index.search(vectors=query)[0].moment is None
        assert tables(index) == 0


def test_items_with_and_without_frames_share_a_batch(tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", MANIFEST) as index:
        frames = [None, unit(3, 2, 8, seed=4), None]
        index.add(VectorBatch("image", [Entry(key) for key in "abc"], unit(3, 2, 8), frames=frames))
        have = {each.id: each.moment is not None for each in index.search(vectors=unit(2, 8))}
    assert have == {"a": False, "b": True, "c": False}


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([None], r"need a set of frames \(or None\) each"),
        ([None, unit(3, 2, 7)], "are sets"),
        ([None, unit(2, 8)], "are sets"),
        ([None, np.zeros((0, 2, 8), np.float32)], "are sets"),
        ([None, np.full((3, 2, 8), np.nan, np.float32)], "NaN"),
        ([None, 100 * unit(3, 2, 8)], "not unit vectors"),
    ],
)
def test_frames_that_are_none_are_refused_and_nothing_is_added(
    tmp_path: Path, frames: list[np.ndarray | None], said: str
) -> None:
    with Index.create(tmp_path / "index", MANIFEST) as index:
        with pytest.raises(InputError, match=said):
            index.add(VectorBatch("image", [Entry("a"), Entry("b")], unit(2, 2, 8), frames=frames))
        assert index.stats().items == 0
        assert tables(index) is None


def test_damaged_frames_are_named_and_cost_the_moment_alone(tmp_path: Path, features: Path) -> None:
    with Index.create(tmp_path / "index", feature_model()) as index:
        index.add(features)
    with sqlite3.connect(tmp_path / "index" / "index.sqlite") as db:
        key = db.execute("SELECT key FROM items WHERE id = 'video0' AND side = 'image'").fetchone()
        db.execute("UPDATE frames SET sets = zeroblob(length(sets)) WHERE item = ?", key)
    with Index.open(tmp_path / "index", model=feature_model()) as index:
        have = {each.id: each.moment is not None for each in index.search("something red", find="image")}
        assert have == {"video0": False, "video1": False, "video2": True, "video3": True}
        (damage,) = index.verify().damage
    assert "'video0'" in damage.why


@pytest.mark.slow
def test_in_milvus_videos_are_found_without_their_moment_and_that_is_said(tmp_path: Path, features: Path) -> None:
    pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    place = f"milvus+lite:{tmp_path}/videos.db/videos"
    with Index.create(tmp_path / "index", feature_model(), store=place) as index:
        report = index.add(features)
        assert report.new == 4 + 8
        assert "without the moment" in report.remark
        found = index.search("something red", find="image")
    assert len(found) == 4
    assert [result.moment for result in found] == [None] * 4
