"""Extraction: every picture once, whatever happens on the way."""

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toy_extraction
from polysem.data import Collection, Item, Media, load_image
from polysem.data.collection import Skipped
from polysem.data.store import FeatureStore, StoreError
from polysem.encoders import Tokens, extraction
from polysem.encoders.extraction import extract, extract_texts
from polysem.encoders.text import TextEncoder
from polysem.errors import ConfigError, InputError
from polysem.features import LocalFeatures
from polysem.registry import Registry
from toy_extraction import Toy, pictures
from waiting import wait_until

pytestmark = pytest.mark.slow

texts: Registry[Any] = Registry("toy text encoder")


@texts.register("letters")
class Letters(TextEncoder):
    """A token for each letter, and the number of letters as global feature."""

    def __init__(self) -> None:
        super().__init__()
        self.dim = 2

    def encode_texts(self, given: list[str]) -> Tokens:
        return Tokens.from_lists([[ord(letter) for letter in text] for text in given])

    def forward(self, tokens: Tokens) -> LocalFeatures:
        values = torch.stack([tokens.ids, -tokens.ids], -1).float()
        return LocalFeatures(values, tokens.mask, tokens.lengths[:, None].float())


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return pictures(tmp_path / "pictures", 20)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_store_holds_what_the_encoder_says_of_each_picture_alone(tmp_path: Path, collection: Collection) -> None:
    encoder = Toy()
    store = extract(collection, encoder, tmp_path / "store", dtype="float32")
    store.verify()
    assert sorted(store.ids) == [item.id for item in collection]
    assert set(store.lengths) == {4, 6, 8}
    for item in collection:
        alone = encoder(encoder.preprocess(load_image(item.media.path))[None]).values[0]
        np.testing.assert_allclose(store[item.id], alone.detach().numpy(), atol=1e-5)


def test_pictures_of_one_size_are_encoded_together(tmp_path: Path, collection: Collection) -> None:
    encoder = Toy()
    extract(collection, encoder, tmp_path / "store", batch_size=4, workers=1)
    assert encoder.batches == [(4, 3, 8, 8), (4, 3, 12, 8), (4, 3, 8, 16), (3, 3, 8, 8), (3, 3, 12, 8), (2, 3, 8, 16)]


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_threads_changes_nothing_on_disk(
    tmp_path: Path, collection: Collection, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract(collection, Toy(), tmp_path / "a", batch_size=2, workers=2)
    extract(collection, Toy(), tmp_path / "b", batch_size=2, workers=workers)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_the_manifest_tells_what_made_the_features(tmp_path: Path, collection: Collection) -> None:
    encoder = Toy()
    manifest = extract(collection, encoder, tmp_path / "store").manifest
    assert manifest.fingerprint == encoder.fingerprint()
    assert manifest.encoder == encoder.config
    assert (manifest.collection, manifest.dtype, manifest.dim) == ("toys", "float16", 5)


def test_a_second_run_has_nothing_left_to_do(tmp_path: Path, collection: Collection) -> None:
    extract(collection, Toy(), tmp_path / "store")
    before, again = contents(tmp_path / "store"), Toy()
    extract(collection, again, tmp_path / "store")
    assert again.encoded == []
    assert contents(tmp_path / "store") == before


def test_splits_extracted_one_after_the_other_share_a_store(tmp_path: Path, collection: Collection) -> None:
    first, second = Toy(), Toy()
    extract(collection.where(range(5)), first, tmp_path / "store")
    store = extract(collection, second, tmp_path / "store")
    assert sorted(second.encoded) == list(range(5, 20))
    assert len(store) == 20


@pytest.mark.parametrize("changes", [{"seed": 1}, {"dim": 7}])
def test_another_encoder_is_refused(tmp_path: Path, collection: Collection, changes: dict[str, int]) -> None:
    extract(collection, Toy(), tmp_path / "store")
    with pytest.raises(StoreError, match=r"fingerprint.*Extract into another folder"):
        extract(collection, Toy(**changes), tmp_path / "store")
    with pytest.raises(StoreError, match="dtype: 'float16' in the store, 'float32' now"):
        extract(collection, Toy(), tmp_path / "store", dtype="float32")


def test_broken_pictures_are_counted_listed_and_not_tried_again(tmp_path: Path, collection: Collection) -> None:
    torn, empty = collection[3].media.path, collection[11].media.path
    whole = torn.read_bytes()
    torn.write_bytes(whole[:40])
    empty.write_bytes(b"")
    seen: list[tuple[str, int, int]] = []
    skipped: list[Skipped] = []
    store = extract(
        collection, Toy(), tmp_path / "store", progress=lambda *step: seen.append(step), on_skip=skipped.append
    )
    assert {skip.what: "empty" in skip.why for skip in store.skipped} == {"003": False, "011": True}
    assert len(store) == 18
    assert seen[-1] == ("extracting", 20, 20)
    assert sorted(skip.what for skip in skipped) == ["003", "011"]

    torn.write_bytes(whole)
    assert len(extract(collection, Toy(), tmp_path / "store")) == 18
    again = Toy()
    store = extract(collection, again, tmp_path / "store", retry_skipped=True)
    assert again.encoded == [3]
    assert [skip.what for skip in store.skipped] == ["011"]


def test_progress_counts_up_to_the_total_and_starts_where_the_last_run_stopped(
    tmp_path: Path, collection: Collection
) -> None:
    extract(collection.where(range(6)), Toy(), tmp_path / "store")
    seen: list[tuple[str, int, int]] = []
    extract(collection, Toy(), tmp_path / "store", batch_size=2, progress=lambda *step: seen.append(step))
    assert seen[0] == ("extracting", 6, 20)
    assert seen == sorted(seen)
    assert seen[-1] == ("extracting", 20, 20)


def test_features_that_are_not_numbers_stop_the_run_with_the_item_and_keep_what_came_before(
    tmp_path: Path, collection: Collection
) -> None:
    class Breaks(Toy):
        def forward(self, pixels: torch.Tensor) -> LocalFeatures:
            features = super().forward(pixels)
            features.values[pixels[:, 0, 0, 0] == 9] = float("nan")
            return features

    with pytest.raises(InputError, match=r"'009': the features hold NaN"):
        extract(collection, Breaks(), tmp_path / "store", batch_size=1)
    store = FeatureStore.open(tmp_path / "store")
    store.verify()
    assert store.ids == [f"{i:03d}" for i in range(9)]
    assert len(extract(collection, Toy(), tmp_path / "store", batch_size=1)) == 20


def test_a_defect_of_an_encoder_names_the_items_it_met(tmp_path: Path, collection: Collection) -> None:
    class Defective(Toy):
        def forward(self, pixels: torch.Tensor) -> LocalFeatures:
            raise RuntimeError("defect")

    with pytest.raises(RuntimeError, match="defect") as caught:
        extract(collection, Defective(), tmp_path / "store", batch_size=2)
    assert "['000', '003']" in caught.value.__notes__[0]


def test_an_encoder_is_in_eval_mode_while_it_extracts_and_as_before_afterwards(
    tmp_path: Path, collection: Collection
) -> None:
    class Watched(Toy):
        def forward(self, pixels: torch.Tensor) -> LocalFeatures:
            modes.append(self.training)
            return super().forward(pixels)

    modes: list[bool] = []
    encoder, threads = Watched().train(), torch.get_num_threads()
    extract(collection, encoder, tmp_path / "store")
    assert not any(modes)
    assert encoder.training
    assert torch.get_num_threads() == threads


def test_only_a_bounded_number_of_pictures_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [Item(f"{i}", Media(tmp_path, "one.png")) for i in range(1000)]
    pictures(tmp_path / "pictures", 1)[0].media.path.rename(tmp_path / "one.png")
    prepared = 0

    class Counts(Toy):
        def preprocess(self, image: Any) -> torch.Tensor:
            nonlocal prepared
            prepared += 1
            return super().preprocess(image)

    most = 0

    def watch(_: str, done: int, total: int) -> None:
        nonlocal most
        most = max(most, prepared - done)

    extract(Collection("many", "image", items), Counts(), tmp_path / "store", progress=watch)
    assert prepared == 1000
    assert most <= 4 * 64


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0)])
def test_an_impossible_rank_is_refused(tmp_path: Path, collection: Collection, rank: int, world_size: int) -> None:
    with pytest.raises(ConfigError, match="rank must be"):
        extract(collection, Toy(), tmp_path / "store", rank=rank, world_size=world_size)


def test_what_needs_no_extraction_or_another_encoder_is_refused(tmp_path: Path, collection: Collection) -> None:
    with pytest.raises(InputError, match="x is a collection of features"):
        extract(Collection("x", "features", []), Toy(), tmp_path / "store")
    with pytest.raises(InputError, match="'letters' takes tokens, so it cannot encode pictures"):
        extract(collection, Letters(), tmp_path / "store")  # type: ignore[arg-type]
    assert not (tmp_path / "store").exists()


# ------------------------------------------------------------------------------------------------ captions


def test_captions_are_stored_under_the_item_and_their_number(tmp_path: Path) -> None:
    items = [Item("a", Media(tmp_path, "a.png"), ("ab", "cde")), Item("b", Media(tmp_path, "b.png"), ("fg", " "))]
    store = extract_texts(Collection("said", "image", items), Letters(), tmp_path / "store", dtype="float32")
    assert store.ids == ["a#0", "b#0", "a#1"]
    assert [skip.what for skip in store.skipped] == ["b#1"]
    assert store["a#1"].tolist() == [[99, -99], [100, -100], [101, -101]]
    assert store.summary("a#1").tolist() == [3]


# ------------------------------------------------------------------------------------------------ other processes


def start(folder: Path, out: Path, diary: Path, hold: int | None = None, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, toy_extraction.__file__, str(folder), str(out), "--diary", str(diary)]
    if hold is not None:
        command += ["--hold", str(hold)]
    return subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)


def wait_for_growth(path: Path, process: subprocess.Popen[str], by: int) -> None:
    def size() -> int:
        return path.stat().st_size if path.exists() else 0

    enough = size() + by
    wait_until(lambda: size() >= enough or process.poll() is not None)


@pytest.mark.slow
def test_kill_9_at_any_moment_loses_and_repeats_nothing_and_ends_in_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out, diary = tmp_path / "pictures", tmp_path / "store", tmp_path / "diary"
    collection = pictures(folder, 120)
    for broken in (7, 50):
        collection[broken].media.path.write_bytes(b"torn")
    extract(collection, Toy(), tmp_path / "straight", batch_size=2, shard_bytes=2000, workers=2)

    chance = random.Random(0)
    kills, committed_at_kills = 0, []
    for _ in range(30):
        committed = set(FeatureStore.open(out).ids) if (out / "manifest.json").exists() else set()
        diary.write_text("")
        # Six runs of at most 18 pictures each do not come to the end of 118.
        with start(folder, out, diary, hold=14 if kills < 4 else None) as process:
            assert process.stdout is not None
            begun = process.stdout.readline()
            if kills < 4:
                # By turns at any moment of the start and after some progress, however slow the machine.
                watched, most = (out / "journal-000.jsonl", 200) if kills % 2 else (diary, 28)
                wait_for_growth(watched, process, by=0 if kills % 3 == 0 else chance.randint(1, most))
                time.sleep(chance.uniform(0, 0.05))
                process.send_signal(signal.SIGKILL)
        assert begun == "begin\n"
        encoded = {f"{int(number):03d}" for number in diary.read_text().split()}
        assert not encoded & committed, "an item that was committed has been encoded again"
        if process.returncode == 0:
            break
        kills += 1
        if (out / "manifest.json").exists():
            store = FeatureStore.open(out)
            store.verify()
            assert committed <= set(store.ids)
            committed_at_kills.append(len(store))

    assert kills == 4
    assert any(0 < count < 118 for count in committed_at_kills), committed_at_kills
    assert contents(out) == contents(tmp_path / "straight")


@pytest.mark.slow
def test_two_processes_share_the_work_and_the_store(tmp_path: Path) -> None:
    folder, out = tmp_path / "pictures", tmp_path / "store"
    collection = pictures(folder, 21)
    diaries = [tmp_path / f"diary{rank}" for rank in range(2)]
    ranks = [start(folder, out, diaries[rank], RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    for process in ranks:
        process.communicate()
        assert process.returncode == 0
    shares = [sorted(map(int, diary.read_text().split())) for diary in diaries]
    assert shares == [[*range(0, 21, 2)], [*range(1, 21, 2)]]

    store, single = FeatureStore.open(out), extract(collection, Toy(), tmp_path / "single")
    store.verify()
    assert sorted(store.ids) == sorted(single.ids)
    for key in store.ids:
        np.testing.assert_allclose(store[key], single[key], rtol=1e-2, atol=1e-2)
    # A later run with another number of processes does nothing twice.
    again = Toy()
    extract(collection, again, out, rank=2, world_size=3)
    assert again.encoded == []


def test_commits_follow_one_another_while_work_goes_on(
    tmp_path: Path, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "COMMIT_SECONDS", 0.0)
    committed: list[int] = []

    def look(*_: object) -> None:
        committed.append(len(FeatureStore.open(tmp_path / "store")))

    extract(collection, Toy(), tmp_path / "store", batch_size=2, progress=look)
    assert committed == sorted(committed)
    assert len(set(committed)) > 5


def test_where_the_c_library_is_another_extraction_is_the_same(
    tmp_path: Path, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract(collection, Toy(), tmp_path / "a")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    extract(collection, Toy(), tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
