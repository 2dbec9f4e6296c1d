"""The folder's backend: sketches and means beside the segments, also when they are late, lost or damaged."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from polysem.search import Entry, Index, Manifest, SearchError, VectorBatch
from polysem.search.backend import RankedItems
from polysem.search.engine import SketchPlan, engine
from polysem.search.filters import parse
from polysem.search.local import LocalBackend, searcher
from polysem.search.store import Snapshot
from search.filters.random_filters import random_filter, random_item
from waiting import LONG, finish, wait_until

K, DIM = 4, 32
SIMILARITY = {"name": "smooth_chamfer", "alpha": 16.0}


def manifest(**changes) -> Manifest:
    given = {"fingerprint": "abc", "sets": {"image": K, "text": K}, "dim": DIM, "similarity": SIMILARITY}
    return Manifest(**given | changes)


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def made(count: int, seed: int = 0) -> np.ndarray:
    """Sets around a few topics in a space whose first dimensions matter most, as those of a trained model."""
    rng = np.random.default_rng(seed)
    weights = np.arange(1, DIM + 1) ** -0.7
    centres = rng.normal(size=(20, 1, DIM))[rng.integers(0, 20, count)]
    return unit((centres + 0.7 * rng.normal(size=(count, K, DIM))) * weights)


def batch(count: int, seed: int = 0, name: str = "item") -> VectorBatch:
    years = [
        Entry(f"{name} {i}", metadata={"year": 2000 + i % 20}, labels=["even"] if i % 2 == 0 else [])
        for i in range(count)
    ]
    return VectorBatch("image", years, made(count, seed))


def plainly(sets: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Smooth-Chamfer as it is written down, in float64."""
    c = 16.0 * np.einsum("nkd,ld->nkl", sets.astype(np.float64), query.astype(np.float64))
    soft = np.log(np.exp(c).sum(2)).mean(1) + np.log(np.exp(c).sum(1)).mean(1)
    return soft / (2 * 16.0)


@pytest.fixture
def small_thresholds(monkeypatch):
    """Segments count as large from a few hundred rows on, and bounds as worth their while."""
    monkeypatch.setattr(engine, "measure_plan", lambda *_: SketchPlan((8, 24), 0.5, (0.2, 0.1)))
    monkeypatch.setattr(searcher, "MIN_SKETCHED", 512)
    monkeypatch.setattr(searcher, "MIN_ATTACHED", 600)


@pytest.fixture
def filled(tmp_path, small_thresholds):
    with LocalBackend.create(tmp_path / "index", manifest()) as each:
        each.add(batch(3000))
        each.add(batch(700, seed=1, name="later"))
        each.add(batch(40, seed=2, name="few"))
        each.optimize()
        yield each


EVERY = np.concatenate([made(3000), made(700, 1), made(40, 2)])
IDS = [f"item {i}" for i in range(3000)] + [f"later {i}" for i in range(700)] + [f"few {i}" for i in range(40)]
QUERIES = unit(made(12, 7) + 0.3 * made(12, 8))


def assert_best(found: RankedItems, query: np.ndarray, k: int, allowed: np.ndarray | None = None) -> None:
    scores = plainly(EVERY, query)
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    order = np.lexsort((np.arange(len(scores)), -scores))[:k]
    assert [item.id for item in found.items] == [IDS[i] for i in order if scores[i] > -np.inf]
    np.testing.assert_allclose(found.scores, scores[order][: len(found.items)], atol=1e-6)
    np.testing.assert_array_equal(found.sets, EVERY[order][: len(found.items)])


def test_exact_search_over_several_segments_is_the_plain_one(filled):
    assert {path.name.split(".")[1] for path in Path(filled._store.folder).glob("*.*.seg")} == {"engine", "means"}
    pruned = 0
    for query in QUERIES:
        found = filled.search("image", query, 10)
        assert_best(found, query, 10)
        pruned += found.scored < len(IDS)
        chosen = np.array([i % 2 == 0 for i in [*range(3000), *range(700), *range(40)]])
        assert_best(filled.search("image", query, 10, where=parse("label = 'even'")), query, 10, chosen)
    assert pruned > 0


@pytest.mark.parametrize("side", ["image", "text"])
def test_a_soft_maximum_over_several_segments_is_the_plain_one(tmp_path, small_thresholds, side):
    """Queries of another size than the items' sets: the vectors of images are chosen among, on either side."""
    asked = unit(QUERIES[:, :3])
    with LocalBackend.create(tmp_path / "index", manifest(similarity={"name": "soft_maximum", "alpha": 16.0})) as each:
        for count, seed, name in ((3000, 0, "item"), (700, 1, "later"), (40, 2, "few")):
            each.add(replace(batch(count, seed, name), side=side))
        each.optimize()
        pruned, recall = 0, []
        many = each.search_batch(side, asked, 10)
        for query, together in zip(asked, many, strict=True):
            c = np.einsum("nkd,ld->nkl", EVERY.astype(np.float64), query.astype(np.float64))
            axis = 1 if side == "image" else 2
            scores = ((np.exp(16 * c) * c).sum(axis) / np.exp(16 * c).sum(axis)).mean(1)
            best = np.argsort(-scores)[:10]
            found = each.search(side, query, 10)
            for ranked in (found, together):
                assert [item.id for item in ranked.items] == [IDS[i] for i in best]
                np.testing.assert_allclose(ranked.scores, scores[best], atol=1e-9)
            fast = each.search(side, query, 10, mode="fast", candidates=400)
            recall.append(len({item.id for item in fast.items} & {IDS[i] for i in best}) / 10)
            pruned += found.scored < len(IDS)
        assert pruned > 0
        assert np.mean(recall) > 0.7


def test_the_fast_mode_finds_nearly_all_and_scores_exactly(filled):
    recall = []
    for query in QUERIES:
        found = filled.search("image", query, 10, mode="fast", candidates=150)
        exact = filled.search("image", query, 10)
        assert found.scored == 150
        scores = dict(zip([item.id for item in exact.items], exact.scores, strict=True))
        for item, score in zip(found.items, found.scores, strict=True):
            assert scores.get(item.id, score) == score
        recall.append(len({item.id for item in found.items} & set(scores)) / 10)
    assert np.mean(recall) > 0.9


@pytest.mark.parametrize("where", ["year = 2003", "label = 'even' and year >= 2010", "id = 'few 3'", "year = 1900"])
def test_the_fast_mode_gives_only_what_passes_a_filter(filled, where):
    with filled._reading() as (snapshot, *_):
        allowed = {item.id for item in snapshot.iterate_items("image", where)}
    for query in QUERIES[:4]:
        found = filled.search("image", query, 10, where=parse(where), mode="fast")
        assert len(found.items) == min(10, len(allowed))
        assert {item.id for item in found.items} <= allowed


def test_many_candidates_make_the_fast_mode_exact(filled):
    for query in QUERIES[:4]:
        found = filled.search("image", query, 10, mode="fast", candidates=len(IDS))
        assert_best(filled.search("image", query, 10), query, 10)
        # An inverted file does not look into every cell, so even then it may miss a little.
        assert len({item.id for item in found.items} & {IDS[i] for i in np.argsort(-plainly(EVERY, query))[:10]}) >= 9


def test_removed_items_are_not_found(filled):
    gone = [item.id for item in filled.search("image", QUERIES[0], 5).items]
    assert filled.remove(gone) == 5
    for mode in ("exact", "fast"):
        found = filled.search("image", QUERIES[0], 20, mode=mode)
        assert len(found.items) == 20
        assert not set(gone) & {item.id for item in found.items}
    filled.compact()
    filled.optimize()
    for mode in ("exact", "fast"):
        assert not set(gone) & {item.id for item in filled.search("image", QUERIES[0], 20, mode=mode).items}
    assert filled.count("image") == len(IDS) - 5


def test_what_was_not_prepared_yet_is_searched_all_the_same(tmp_path, small_thresholds):
    with LocalBackend.create(tmp_path / "index", manifest()) as writer:
        writer.add(batch(3000))
        with LocalBackend.open(tmp_path / "index") as reader:
            before = [reader.search("image", query, 10) for query in QUERIES]
            assert all(found.scored == 3000 for found in before)
            writer.optimize()
            after = [reader.search("image", query, 10) for query in QUERIES]
            assert any(found.scored < 3000 for found in after)  # it noticed
            for one, other in zip(before, after, strict=True):
                assert [item.id for item in one.items] == [item.id for item in other.items]
                np.testing.assert_array_equal(one.scores, other.scores)


@pytest.mark.parametrize("name", ["engine", "means"])
@pytest.mark.parametrize("how", ["damaged", "lost", "cut"])
def test_damaged_preparations_are_made_again(filled, name, how):
    expected = filled.search("image", QUERIES[0], 10)
    folder = Path(filled._store.folder)
    filled.close()
    for path in folder.glob(f"*.{name}.seg"):
        content = path.read_bytes()
        if how == "lost":
            path.unlink()
        else:
            path.write_bytes(content[:64] if how == "cut" else content[:20] + b"????" + content[24:])
    with LocalBackend.open(folder, write=True) as again:
        for mode in ("exact", "fast"):
            found = again.search("image", QUERIES[0], 10, mode=mode)
            if mode == "exact":
                assert [item.id for item in found.items] == [item.id for item in expected.items]
        again.optimize()
        assert len(list(folder.glob(f"*.{name}.seg"))) == 2
        assert again.verify() == []


def test_a_damaged_segment_is_named_and_the_others_are_searched(filled):
    folder = Path(filled._store.folder)
    filled.close()
    second = sorted(folder.glob("segment-??????.seg"))[1]
    second.write_bytes(second.read_bytes()[:100])
    with Index(folder, LocalBackend.open(folder)) as index:
        found = index.search(vectors=QUERIES[0], k=10)
        scores = plainly(EVERY, QUERIES[0])
        scores[3000:3700] = -np.inf
        assert found.ids == [IDS[i] for i in np.argsort(-scores, kind="stable")[:10]]
        assert found.unreadable == 700
        verified = index.verify(sample=5)
        assert [each.segment for each in verified.damage if not each.segment.count(".") > 1] == [second.name]
        assert len(verified.lost[second.name]) == 700


def test_one_item_at_a_time_costs_what_it_is(tmp_path, small_thresholds, monkeypatch):
    """Adding to a large index neither studies nor sketches again what is there."""
    with LocalBackend.create(tmp_path / "index", manifest()) as each:
        each.add(batch(3000))
        each.optimize()
        built = []
        real = searcher.Engine.build
        monkeypatch.setattr(
            searcher.Engine,
            "build",
            lambda vectors, *a, **b: built.append(len(vectors)) or real(vectors, *a, **b),
        )
        for i in range(20):
            each.add(batch(1, seed=i, name=f"one {i}"))
            each.optimize()
            each.search("image", QUERIES[0], 5)
        assert sum(built) < 400
        assert 3000 not in built


@pytest.mark.slow
def test_a_second_process_reads_while_one_writes(filled):
    code = (
        "import sys, numpy as np; from polysem.search.local import LocalBackend; "
        "b = LocalBackend.open(sys.argv[1]); q = np.load(sys.argv[2]); "
        "print(b.count('image'), b.search('image', q, 1).items[0].id)"
    )
    folder = Path(filled._store.folder)
    np.save(folder.parent / "query.npy", QUERIES[0])
    run = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(folder.parent / "query.npy")], capture_output=True, text=True
    )
    assert run.stdout.split(maxsplit=1) == [str(len(IDS)), filled.search("image", QUERIES[0], 1).items[0].id + "\n"]
    with pytest.raises(SearchError, match="written by another process"):
        LocalBackend.open(folder, write=True)


def test_threads_search_while_one_adds(filled):
    wrong: list[str] = []
    done, looked = threading.Event(), [0, 0]

    def look(number: int) -> None:
        while not done.is_set():
            found = filled.search("image", QUERIES[1], 5)
            looked[number] += 1
            if len(found.items) != 5 or not np.all(np.diff(found.scores) <= 0):
                wrong.append(str(found))

    def all_went_on(before: list[int]) -> bool:
        return all(now > then for now, then in zip(looked, before, strict=True))

    threads = [threading.Thread(target=look, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    for i in range(5):
        filled.add(batch(30, seed=20 + i, name=f"new {i}"))
        filled.remove([f"item {i}"])
        wait_until(partial(all_went_on, list(looked)), "both search on")
    filled.compact()
    filled.optimize()
    done.set()
    finish(*threads)
    assert wrong == []
    assert min(looked) >= 5


def test_the_audit_is_kept_and_shown(filled):
    with Index("here", filled) as index:
        assert index.stats().audit is None
        verified = index.verify(sample=20)
        assert verified.damage == []
        measured = verified.audit["recall"]["image to image"]
        assert 0.9 < measured["recall10"] <= 1
        assert measured["queries"] == 20
        stats = index.stats()
        assert stats.audit["recall"] == verified.audit["recall"]
        assert not stats.changed_since_audit
        filled.remove(["item 0"])
        assert index.stats().changed_since_audit


def test_the_progress_of_an_audit_is_of_both_sides(tmp_path):
    with Index.create(tmp_path / "index", manifest()) as index:
        index.add(batch(30))
        few = VectorBatch("text", [Entry(f"text {i}") for i in range(4)], made(4))
        index.add(few)
        told = []
        index.verify(sample=10, progress=lambda stage, *counts: told.append(counts) if stage == "verifying" else None)
    assert told == [(done, 28) for done in range(1, 29)]


def test_an_audit_that_finds_less_says_so(filled, monkeypatch):
    real = searcher.search_means
    monkeypatch.setattr(searcher, "search_means", lambda index, query, *rest: real(index, -query, *rest))
    with Index("here", filled) as index:
        assert index.verify(sample=10).audit["recall"]["image to image"]["recall10"] < 0.5


def test_masks_are_kept_for_a_few_filters(filled, monkeypatch):
    asked = asked_of_the_database(monkeypatch)
    for _ in range(3):
        filled.search("image", QUERIES[0], 3, where=parse("year = 2003"))
    assert len(asked) == 1
    for year in range(100):
        filled.count("image", parse(f"year = {year}"))
    with filled._reading() as (_, sides, _):
        assert len(sides["image"]._masks) <= searcher.KEPT_FILTERS
        assert len(filled._filters["image"]._bits) <= searcher.KEPT_FILTERS


def asked_of_the_database(monkeypatch) -> list[set[int]]:
    """The segments that are looked through for a filter, from now on."""
    asked, real = [], Snapshot.filter_rows
    monkeypatch.setattr(
        Snapshot, "filter_rows", lambda self, side, where, among: asked.append(among) or real(self, side, where, among)
    )
    return asked


def test_after_a_change_a_filter_reads_what_is_new_and_nothing_else(filled, monkeypatch):
    asked = asked_of_the_database(monkeypatch)
    where = parse("year in (2003, 2004) and label = 'even'")
    before = filled.count("image", where)
    filled.add(batch(40, seed=5, name="late"))
    with filled._reading() as (snapshot, *_):
        newest = max(snapshot.segments)
    assert filled.count("image", where) == before + 2
    assert asked[1:] == [{newest}]
    assert filled.remove(["late 4", "item 4"]) == 2
    filled.add(VectorBatch("image", [Entry("late 24", metadata={"year": 1990})], made(1)))
    assert filled.count("image", where) == before - 1
    assert all(len(each) == 1 for each in asked[1:])


def test_a_snapshot_that_is_held_filters_what_was_removed_since(filled):
    where = parse("year = 2003")
    with filled.snapshot() as older:
        gone = filled.matching_ids("image", where)[:5]
        assert filled.remove(gone) == 5
        newer = filled.count("image", where)
        assert older.count("image", where) == newer + 5
        assert set(gone) <= set(older.sample("image", 10_000, where=where))
        assert filled.count("image", where) == newer
        with filled.snapshot() as latest:
            assert filled.remove(filled.matching_ids("image", where)) == newer
            assert (older.count("image", where), latest.count("image", where)) == (newer + 5, newer)
            assert filled.count("image", where) == 0


def test_filters_that_are_carried_on_are_those_asked_anew(tmp_path, monkeypatch):
    """Anything added, replaced, removed and compacted, and after each the same filters by an index opened afresh."""
    rng = random.Random(5)
    filters = [parse(random_filter(rng)) for _ in range(10)]
    with LocalBackend.create(tmp_path, manifest()) as index:
        passed = 0
        for step in range(25):
            some = [random_item(rng, rng.randrange(60)) for _ in range(rng.randrange(1, 12))]
            once = {f"{number}": each for number, each in enumerate(some)} if step % 5 else {}
            entries = [
                Entry(key, each["path"], each["caption"], each["metadata"], each["label"]) for key, each in once.items()
            ]
            index.add(VectorBatch("image", entries, made(len(entries))))
            if step % 3 == 0:
                index.remove([str(rng.randrange(12))])
            if step % 7 == 6:
                index.compact()
            with LocalBackend.open(tmp_path) as fresh:
                for where in filters:
                    found = index.matching_ids("image", where)
                    with index._reading() as (snapshot, sides, _):
                        mask = sides["image"].mask(where)
                        rows = np.arange(snapshot.rows("image")) if mask is None else np.flatnonzero(mask)
                        assert [item.id for item in snapshot.items("image", rows)] == found
                    assert fresh.count("image", where) == len(found)
                    passed += bool(found)
        assert passed > 50


def test_an_idle_reader_lets_the_log_of_a_writer_be_emptied(filled):
    folder = Path(filled._store.folder)
    with LocalBackend.open(folder) as reader:
        before = reader.search("image", QUERIES[0], 3, where=parse("year > 2003"))
        connection = sqlite3.connect(folder / "index.sqlite")
        filled.write_value("large", "x" * 2**20)
        connection.execute("PRAGMA busy_timeout = 0")
        with reader._reading():  # within a call it must not be
            filled.write_value("large", "y" * 2**20)
            assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 1
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
        connection.close()
        assert (folder / "index.sqlite-wal").stat().st_size == 0
        for number in range(20):
            filled.write_value("large", f"{number}" * 2**19)
        assert (folder / "index.sqlite-wal").stat().st_size < 2**23  # a few of them, not all
        after = reader.search("image", QUERIES[0], 3, where=parse("year > 2003"))
        assert [item.id for item in after.items] == [item.id for item in before.items]


def test_a_reader_sees_one_moment_within_a_call(filled):
    with LocalBackend.open(Path(filled._store.folder)) as reader:
        count = reader.count("image")
        with reader._reading() as (snapshot, *_):
            filled.remove(["item 1"])
            filled.add(batch(3, name="brand new"))
            assert len(snapshot.find(["item 1", "brand new 1"])) == 1
            assert len(list(snapshot.iterate_items("image"))) == count
            with reader._reading() as (newer, *_):
                assert newer is not snapshot
                assert len(list(newer.iterate_items("image"))) == count + 2
            assert len(list(snapshot.iterate_items("image"))) == count
        assert reader.count("image") == count + 2


@pytest.mark.crash
@pytest.mark.slow
def test_an_index_killed_at_any_moment_is_searched_right(tmp_path):
    command = [sys.executable, str(Path(__file__).parents[1] / "kill_index.py"), str(tmp_path / "index"), "25", "1"]
    # OpenMP with several threads does not survive the forks of this program.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=2 * LONG, env=environment)
    assert run.returncode == 0, run.stderr
    interrupted = json.loads(run.stdout)
    assert sum(interrupted.values()) == 25
    assert interrupted.get("nothing", 0) < 20


def test_opening_a_prepared_index_reads_no_vectors(filled, monkeypatch):
    folder = Path(filled._store.folder)
    filled.remove([f"few {i}" for i in range(40)])
    filled.close()

    def must_not(*_: object, **__: object) -> None:
        raise AssertionError("vectors were read")

    monkeypatch.setattr(searcher.Engine, "build", must_not)
    monkeypatch.setattr(searcher, "build_mean_index", must_not)
    monkeypatch.setattr(searcher, "MIN_ATTACHED", 10**9)
    with LocalBackend.open(folder) as again, again._reading() as (_, sides, _):
        parts = [each for each in sides["image"].segments if len(each.vectors) > 100]
        assert len(parts) == 2
        assert all(each.engine is not None and each.means is not None for each in parts)
