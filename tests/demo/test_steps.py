"""The demo's steps: made once, gone on with after any interruption, with one's own pictures or without."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import polysem
from demo.tiny import SCENES, fake_packages, files, make_photos, ship_tiny, tiny_settings
from polysem.data import open_collection, train_overlap
from polysem.demo import MODELS, Demo, demo
from polysem.environment.paths import PHOTO_SMALL, SHIPPED
from polysem.errors import InputError
from polysem.evaluation import evaluate
from polysem.search import Index
from polysem.synthetic.scenes.art import CREDIT
from polysem.training import NullObserver
from training.small import make_data, weights

pytestmark = pytest.mark.slow

TEST = SCENES // 10


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    return tmp_path_factory.mktemp("encoders")


@pytest.fixture(autouse=True)
def _no_packages(monkeypatch, encoders):
    fake_packages(monkeypatch)
    ship_tiny(monkeypatch, encoders)


@pytest.fixture(scope="module")
def settings(encoders):
    return tiny_settings(encoders)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, settings):
    """A demo that nobody has stopped, and what it told on the way. Not to be changed."""
    told = Told()
    with pytest.MonkeyPatch.context() as patch:
        fake_packages(patch)
        made = run(tmp_path_factory.mktemp("whole") / "demo", settings, told)
    return made, told


@dataclass
class Told(NullObserver):
    """Hears everything that a demo tells. stop: at which message of which step Ctrl-C is pressed, both from 1."""

    stop: tuple[int, int] | None = None
    messages: list[list[str]] = field(default_factory=list)

    def hear(self, message: str) -> None:
        self.messages[-1].append(message)
        if (len(self.messages), len(self.messages[-1])) == self.stop:
            raise KeyboardInterrupt

    def announce(self, what: str) -> None:
        self.messages.append([])
        self.hear(what)

    def progress(self, stage: str, done: int, of: int) -> None:
        self.hear(stage)

    def features(self, what: str, done: int, total: int) -> None:
        self.hear(f"features of {what}")

    def step(self, record: dict[str, Any]) -> None:
        self.hear("training")

    def validation(self, record: dict[str, Any]) -> None:
        self.hear("validation")

    @property
    def steps(self) -> list[str]:
        return [messages[0] for messages in self.messages]

    @property
    def heard(self) -> Counter[str]:
        return Counter(message for messages in self.messages for message in messages)


def run(folder: Path, settings: list[str], told: Told, data: Path | None = None) -> Demo:
    return demo(
        folder, data, scenes=SCENES, settings=settings, progress=told.progress, announce=told.announce, screen=told
    )


def copied(whole: Demo, folder: Path) -> Path:
    """The models of the scenes, for a test that would else have to train them again."""
    shutil.copytree(whole.folder, folder, ignore=shutil.ignore_patterns("index"))
    return folder


def assert_same(made: Demo, other: Demo) -> None:
    """To the bit: what was learned, measured and found."""
    assert made.comparison == other.comparison
    for model in MODELS:
        one, two = (weights(each.folder / model) for each in (made, other))
        assert one.keys() == two.keys()
        assert all(one[name].equal(two[name]) for name in one)
    for one, two in zip(made.searches, other.searches, strict=True):
        assert (one.query, one.why) == (two.query, two.why)
        assert [(each.id, each.score) for each in one.results] == [(each.id, each.score) for each in two.results]
    with Index.open(made.index) as a, Index.open(other.index) as b:
        assert a.stats().by_side == b.stats().by_side == {"image": SCENES, "text": 5 * SCENES}
        assert not a.verify(sample=1).damage


def test_it_makes_everything_and_tells_every_step(whole):
    made, told = whole
    assert [(row.model, row.embedding) for row in made.comparison.rows] == [
        ("single", "single"),
        ("single-equal-bytes", "single"),
        ("set", "set 8 and 1"),
    ]
    assert made.model == made.folder / "set"
    assert str(made.comparison.stamp).startswith(f"emoji-scenes test, {TEST}×{5 * TEST}")
    assert "selected on val" in str(made.comparison.stamp)
    assert [step.split()[0] for step in told.steps] == [
        "Emoji",
        "Features",
        "Training",
        "Training",
        "Training",
        "Comparing",
        "Indexing",
    ]
    heard = told.heard
    assert heard["making scenes"] == SCENES
    for stage in ("features of images", "features of captions", "training", "validation", "ranking", "indexing"):
        assert heard[stage], stage
    assert made.why_not is None
    assert not made.skipped
    with Index.open(made.index) as index:
        assert index.stats().credits == [CREDIT]
    assert len(made.searches) == 2
    assert all(len(found.results) == 3 for found in made.searches)


def test_the_searches_say_how_they_went(whole):
    made, _ = whole
    by_label, by_caption = made.searches
    held_out = {item.id: item for item in made.indexed if item.split == "test"}
    count = sum(by_label.query in item.labels for item in held_out.values())
    right = sum(by_label.query in result.labels for result in by_label.results)
    assert by_label.why == f"the label of {count} of {TEST} held-out pictures, and of {right} of the 3 found"
    name = next(name for name in held_out if name in by_caption.why)
    assert by_caption.query in held_out[name].captions
    with Index.open(made.index) as index:
        rank = index.search(by_caption.query, k=SCENES).ids.index(name) + 1
    assert by_caption.why == f"said of the held-out picture {name}, which is at place {rank} of {SCENES}"


def test_a_second_run_makes_nothing_again(whole, settings):
    made, _ = whole
    before = files(made.folder, is_made)
    told = Told()
    assert_same(run(made.folder, settings, told), made)
    assert files(made.folder, is_made) == before
    heard = told.heard
    assert heard["making scenes"] == 1  # that they are there
    for stage in ("features of images", "features of captions", "training", "validation", "verifying"):
        assert not heard[stage], stage


def is_made(path: Path) -> bool:
    """Not the files that a database or a lock touches when it is opened."""
    return not path.name.endswith(("-wal", "-shm", ".lock"))


def test_stopped_in_every_step_it_goes_on_to_the_same_result(whole, settings, tmp_path):
    made, told = whole
    draw = random.Random(0)
    for step, messages in enumerate(told.messages, start=1):
        stopped = Told((step, draw.randint(1, len(messages))))
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "demo", settings, stopped)
        assert stopped.steps == told.steps[:step]
    assert_same(run(tmp_path / "demo", settings, Told()), made)


def test_own_pictures_with_captions_are_learned_from(whole, settings, tmp_path):
    photos, folder = make_photos(tmp_path / "my photos"), copied(whole[0], tmp_path / "demo")
    before, told = files(folder), Told()
    made = run(folder, settings, told, photos)
    assert told.steps[0].startswith("Features")  # no scenes
    assert made.why_not is None
    assert made.data == photos
    assert str(made.comparison.stamp).startswith("my photos 10% held out by id, 8×8")
    assert made.index.parent.parent == folder
    one, two, *_ = open_collection(photos).hold_out()[0]
    assert [found.query for found in made.searches] == [one.captions[0], two.captions[0]]
    after = files(folder)
    assert {name: after[name] for name in before} == before  # what was there is left as it is
    again = Told()
    assert run(folder, settings, again, photos).comparison == made.comparison
    assert not again.heard["training"]
    assert {name: at for name, at in files(folder, is_made).items() if name in after} == {
        name: at for name, at in after.items() if is_made(Path(name))
    }


def test_the_model_for_photographs_is_measured_beside_them_and_makes_the_index(settings, tmp_path, monkeypatch):
    photos, told = make_photos(tmp_path / "photos"), Told()
    made = run(tmp_path / "demo", settings, told, photos)
    rows = {row.model: row for row in made.comparison.rows}
    assert [(name, row.embedding) for name, row in rows.items()] == [
        ("single", "single"),
        ("single-equal-bytes", "single"),
        ("set", "set 8 and 1"),
        ("photo-small", "set 2"),
    ]
    alone = evaluate(PHOTO_SMALL, photos, split="val", intervals=False)
    assert (alone.stamp.images, rows["photo-small"].cells["rsum"].value) == (8, alone.metrics["rsum"])
    assert told.steps[-1] == "Indexing photos with photo-small: 48 pictures and their captions"
    with Index.open(made.index) as index:
        assert made.model == index.manifest.model == PHOTO_SMALL
        assert index.manifest.fingerprint == polysem.load(PHOTO_SMALL).fingerprint()

    known = polysem.load(PHOTO_SMALL)  # one that has learned from these very pictures is no match for the others
    known.provenance = {"data": {"items": train_overlap.build_sketch(open_collection(photos))}}
    monkeypatch.setitem(SHIPPED, PHOTO_SMALL, known.save(tmp_path / "photo-small"))
    again = run(tmp_path / "demo", settings, Told(), photos).comparison
    assert [row.model for row in again.rows] == list(MODELS)
    assert "photo-small is not in the table: " in again.notes[-1]
    assert "TRAINED ON THIS SPLIT" in again.notes[-1]


def test_other_captions_make_another_model(settings, tmp_path):
    photos = make_photos(tmp_path / "photos")
    one = run(tmp_path / "demo", settings, Told(), photos)
    (photos / "captions.jsonl").write_text((photos / "captions.jsonl").read_text().replace("a big dog", "the dog"))
    two = run(tmp_path / "demo", settings, Told(), photos)
    assert one.index != two.index
    assert two.comparison.stamp.images == one.comparison.stamp.images
    with Index.open(two.index) as index:
        assert "the dog 0" in {item.caption for item in index.sample("text", 100)}


@pytest.mark.parametrize("captioned", [0, 39])
def test_without_enough_captions_nothing_is_trained(settings, tmp_path, captioned):
    photos, folder, told = make_photos(tmp_path / "photos", 41, captioned), tmp_path / "demo", Told()
    made = run(folder, settings, told, photos)
    assert made.why_not == f"{captioned} of its 41 pictures have captions, and learning takes 40 or more"
    assert made.data == photos
    assert made.model == PHOTO_SMALL
    assert made.comparison is None
    assert [step.split()[0] for step in told.steps] == ["Indexing"]
    assert [path.name for path in folder.iterdir()] == [made.index.parent.name]
    assert [path.name for path in made.index.parent.iterdir()] == ["index"]
    with Index.open(made.index) as index:
        assert index.stats().by_side == {"image": 41, "text": captioned}
    assert ("a guess" in made.searches[0].why) == (captioned == 0)


def test_an_index_of_own_pictures_follows_them(settings, tmp_path):
    photos, folder = make_photos(tmp_path / "photos", 6, 0), tmp_path / "demo"
    run(folder, settings, Told(), photos)
    (photos / "000 dog.png").rename(photos / "new dog.png")
    (photos / "001 cat.png").unlink()
    made = run(folder, settings, Told(), photos)
    with Index.open(made.index) as index:
        held = {item.id for item in index.sample("image", 100)}
    assert held == {"002 ball.png", "003 grass.png", "004 dog.png", "005 cat.png", "new dog.png"}


def test_folders_of_one_name_are_kept_apart(settings, tmp_path):
    places = [make_photos(tmp_path / place / "photos", 3, 0) for place in ("here", "there")]
    one, two = (run(tmp_path / "demo", settings, Told(), place) for place in places)
    assert one.index != two.index


@pytest.mark.parametrize("captioned", [None, 0])
def test_a_picture_that_cannot_be_read_is_left_out_and_named(settings, tmp_path, captioned):
    photos, folder = make_photos(tmp_path / "photos", 48, captioned), tmp_path / "demo"
    tested, learned = open_collection(photos).hold_out()
    damaged = sorted([tested[0].id, learned[0].id])
    for name in damaged:
        (photos / name).write_bytes((photos / name).read_bytes()[:200])
    made = run(folder, settings, Told(), photos)
    assert [each.what for each in made.skipped] == damaged
    assert (made.why_not is None) == (captioned is None)
    if captioned is None:
        assert made.comparison.stamp.images == len(tested) - 1
    with Index.open(made.index) as index:
        assert index.stats().by_side["image"] == 46


def test_nothing_but_pictures_that_cannot_be_read(settings, tmp_path):
    photos, folder = make_photos(tmp_path / "photos", 2, 0), tmp_path / "demo"
    for path in photos.iterdir():
        path.write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"None of the 2 pictures of photos can be read, e\.g\. 000 dog\.png"):
        run(folder, settings, Told(), photos)


def test_what_is_no_folder_of_pictures_is_refused_before_anything_is_made(settings, tmp_path):
    (tmp_path / "empty").mkdir()
    features = make_data(tmp_path / "regions")
    for place, says in (("nowhere", "no such file or folder"), ("empty", "no pictures"), (features, "takes pictures")):
        with pytest.raises(InputError if place == features else ValueError, match=says):
            run(tmp_path / "demo", settings, Told(), tmp_path / place)
    assert not (tmp_path / "demo").exists()


def test_splits_that_cannot_be_learned_from_are_told(settings, tmp_path):
    photos, folder = make_photos(tmp_path / "photos"), tmp_path / "demo"
    table = photos / "captions.jsonl"
    table.write_text(table.read_text().replace("}", ', "split": "test"}'))
    made = run(folder, settings, Told(), photos)
    assert made.why_not == "its splits are test, and learning takes train and val"
