"""Every command that takes a model or an index, on videos: as files and as frame features."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from polysem.cli import app
from search.videos import CAPTIONS, FRAMES, feature_model, make_features, make_videos, raw_model, write_video

pytestmark = pytest.mark.slow


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "160"})
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two kinds of clips, two models of each, and an index of each."""
    folder = tmp_path_factory.mktemp("videos")
    make_videos(folder / "raw")
    make_features(folder / "features")
    raw_model(folder).save(folder / "raw-model")
    for sets in ("gpo", "slots", "classes"):
        feature_model(sets).save(folder / f"features-{sets}")
    run("index", folder / "raw", "--model", folder / "raw-model", "--out", folder / "raw-index")
    run("index", folder / "features", "--model", folder / "features-slots", "--out", folder / "features-index")
    return folder


def test_search_shows_the_moment(work: Path) -> None:
    shown = run("search", work / "raw-index", "something red").output
    assert "moment" in shown
    assert "0:0" in shown
    shown = run("search", work / "features-index", "something red").output
    assert "frame" in shown
    told = json.loads(run("search", work / "raw-index", "something red", "--json").output)
    assert all(len(each["moment"]["curve"]) == FRAMES for each in told["items"])
    texts = run("search", work / "raw-index", "something red", "--find", "texts").output
    assert "moment" not in texts


def test_a_sheet_shows_the_frame_at_the_moment(work: Path, tmp_path: Path) -> None:
    query = write_video(tmp_path / "query.mp4", [(40, 40, 230)])  # video1 shows this in seconds 3 to 5
    words = ("search", work / "raw-index", "--image", query, "--filter", "id = 'video1'", "--sheet", tmp_path / "s.png")
    run(*words)
    with Image.open(tmp_path / "s.png") as sheet:
        red, green, blue = sheet.convert("RGB").getpixel((160, 160))  # type: ignore[misc]
    assert blue > 150
    assert max(red, green) < 110
    refused = run("search", work / "features-index", "something red", "--sheet", tmp_path / "s.png", code=1)
    assert "no pictures" in str(refused.exception)


def test_an_index_of_videos_is_looked_after_like_any_other(work: Path, tmp_path: Path) -> None:
    place, clips = tmp_path / "index", make_videos(tmp_path / "clips")
    run("index", clips, "--model", work / "raw-model", "--out", place)
    again = json.loads(run("add", place, clips, "--json").output)
    assert (again["new"], again["unchanged"]) == (0, 12)
    # Said differently: it keeps its vectors and its frames.
    (clips / "captions.json").write_text(json.dumps({**CAPTIONS, "video0": ["a black picture"]}))
    run("add", place, clips)
    told = json.loads(run("search", place, "a black picture", "--find", "images", "--json").output)
    assert all(each["moment"] for each in told["items"])
    run("remove", place, "video0")
    assert "video0" not in run("search", place, "something red").output
    new = write_video(tmp_path / "new.webm", [(9, 9, 9), (250, 250, 250)], codec="libvpx")
    assert json.loads(run("add", place, clips, new, "--json").output)["new"] == 1 + 1 + 1
    assert json.loads(run("stats", place, "--json").output)["by_side"]["image"] == 5
    checked = json.loads(run("verify", place, "--json").output)
    assert checked["damage"] == []
    run("compact", place)
    told = json.loads(run("search", place, "something red", "--json").output)
    assert all(each["moment"] for each in told["items"])


def test_a_video_is_explained(work: Path, tmp_path: Path) -> None:
    video = work / "raw" / "videos" / "video1.mp4"
    said = run("explain", work / "raw-model", video, "something red", "--out", tmp_path / "why.png").output
    assert "best at 0:0" in said
    with Image.open(tmp_path / "why.png") as drawing:
        assert drawing.width > 500
    told = json.loads(run("explain", work / "raw-model", video, "something red", "--json").output)
    assert len(told["moment"]["curve"]) == FRAMES
    assert told["image_weights"]["places"]["kind"] == "frames"
    assert told["image_weights"]["places"]["times"] == pytest.approx([n + 0.5 for n in range(FRAMES)], abs=0.1)


@pytest.mark.parametrize("sets", ["gpo", "slots", "classes"])
def test_frame_features_are_explained(work: Path, tmp_path: Path, sets: str) -> None:
    features, captions = work / "features" / "features" / "video2.npy", work / "features"
    words = ("explain", work / f"features-{sets}", features, "something red", "--captions", captions)
    assert "best at frame" in run(*words, "--out", tmp_path / "why.svg").output
    told = json.loads(run(*words, "--json").output)
    assert told["image_weights"]["places"]["times"] is None
    assert len(told["moment"]["curve"]) == 9


@pytest.mark.parametrize("model", ["raw-model", "features-gpo", "features-slots", "features-classes"])
def test_models_of_videos_are_diagnosed_mapped_and_evaluated(work: Path, tmp_path: Path, model: str) -> None:
    data = work / ("raw" if model == "raw-model" else "features")
    run("diagnose", work / model, "--data", data, "--out", tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 1000
    run("map", work / model, "--data", data, "--out", tmp_path / "map.html", "--method", "pca")
    told = json.loads(run("eval", work / model, "--data", data, "--split", "all", "--json").output)
    assert told


def test_an_index_of_videos_has_a_map(work: Path, tmp_path: Path) -> None:
    for index in ("raw-index", "features-index"):
        run("map", work / index, "--out", tmp_path / "map.png", "--method", "pca")
        assert (tmp_path / "map.png").is_file()
