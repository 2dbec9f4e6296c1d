"""Files that change behind the index's back: named, left out, and mended by adding again."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import numpy as np
import pytest

from polysem.search import Entry, Index, Manifest, SearchError, VectorBatch
from polysem.search.engine import SketchPlan, engine
from polysem.search.local import LocalBackend, searcher
from polysem.search.store.segments import Segment
from search.photos import make_photos, tiny_model

K, DIM = 2, 16

pytestmark = pytest.mark.crash


def manifest(**changes) -> Manifest:
    return Manifest(
        **{"fingerprint": "abc", "sets": {"image": K}, "dim": DIM, "similarity": {"name": "smooth_chamfer"}} | changes
    )


def made(count: int, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(count, K, DIM)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)


def batch(name: str, count: int, seed: int = 0) -> VectorBatch:
    return VectorBatch("image", [Entry(f"{name}{i}", hash="h") for i in range(count)], made(count, seed))


@pytest.fixture
def prepared(monkeypatch):
    """Segments of a few hundred rows count as large."""
    monkeypatch.setattr(searcher, "MIN_SKETCHED", 100)
    monkeypatch.setattr(searcher, "MIN_ATTACHED", 150)
    monkeypatch.setattr(engine, "MIN_ITEMS", 1)
    monkeypatch.setattr(engine, "_FEW", 10)
    monkeypatch.setattr(engine, "measure_plan", lambda *_: SketchPlan((8,), 0.5, (0.1,)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two segments: `a`, of 200 items, and `b`, of 20."""
    with Index.create(tmp_path / "index", manifest()) as index:
        index.add(batch("a", 200))
        index.add(batch("b", 20, seed=1))
    return tmp_path / "index"


def overwrite(path: Path, place: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(content)


def first(folder: Path) -> Path:
    return sorted(folder.glob("segment-??????.seg"))[0]


@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize("value", [np.nan, 1e30, 50.0])
@pytest.mark.parametrize("large", [False, True])
def test_damaged_vectors_take_nobody_else_down(folder, prepared, monkeypatch, large, value, native):
    monkeypatch.setenv("POLYSEM_NATIVE", native)
    if not large:
        monkeypatch.setattr(searcher, "MIN_SKETCHED", 10**6)
        monkeypatch.setattr(searcher, "MIN_ATTACHED", 10**6)
    else:
        with LocalBackend.open(folder, write=True) as backend:
            backend.optimize()
    overwrite(first(folder), 64, np.full(200 * K * DIM, value, "<f4").tobytes())
    with Index.open(folder) as index:
        for mode in ("exact", "fast"):
            found = index.search(vectors=made(20, 1)[3], k=10, mode=mode)
            assert found[0].id == "b3"
            assert all(result.id.startswith("b") for result in found)
            assert np.isfinite([result.score for result in found]).all()
        assert found.unreadable == 200 or large  # bounds may rule the damaged out unseen
        verified = index.verify(sample=5)
        assert {each.segment for each in verified.damage} == {first(folder).name}
        assert len(verified.lost[first(folder).name]) == 200
        assert verified.audit is not None
        assert index.search(vectors=made(1)[0], k=3).unreadable == 200


def test_adding_again_mends_what_verify_found(tmp_path):
    photos, model = make_photos(tmp_path / "photos"), tiny_model(tmp_path)
    with Index.create(tmp_path / "index", model) as index:
        index.add(photos)
        expected = index.search("a red picture").as_dict()["items"]
    overwrite(first(tmp_path / "index"), 70, b"\xff\x07\xff")
    with Index.open(tmp_path / "index", write=True, model=model) as index:
        assert len(index.verify(sample=2).damage) == 1
        assert index.add(photos).replaced == 4
        assert index.verify(sample=2).damage == []
        again = index.search("a red picture").as_dict()["items"]
    assert [each["id"] for each in again] == [each["id"] for each in expected]


def test_a_lost_segment_is_mended_by_adding_and_emptied_by_removing(folder):
    first(folder).unlink()
    with Index.open(folder, write=True) as index:
        assert index.search(vectors=made(1)[0], k=3).unreadable == 200
        assert index._backend.hashes(["a0", "b0"], "image") == {"b0": "h"}
        assert index.remove_where("id like 'a%'") == 200
        assert index.search(vectors=made(1)[0], k=3).unreadable == 0


def test_a_lost_segment_is_no_damage_once_its_items_are_added_again(folder):
    first(folder).unlink()
    with Index.open(folder, write=True) as index:
        (found,) = index.verify(sample=2).damage
        assert (found.segment, found.why) == ("segment-000001.seg", "the file is gone")
        index.add(batch("a", 200))
        assert index.verify(sample=2).damage == []
    with Index.open(folder) as index:
        assert index.search(vectors=made(1)[0], k=300).unreadable == 0


def harmed(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content))
    match rng.randrange(5):
        case 0:
            return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
        case 1:
            return content[:place] + rng.randbytes(64) + content[place + 64 :]
        case 2:
            return content[:place]
        case 3:
            return content + b"more"
        case _:
            return rng.randbytes(32) + content[32:]


def test_whatever_happens_to_a_segment_it_is_named_and_the_other_searched(folder):
    rng = random.Random(1)
    files = sorted(folder.glob("segment-??????.seg"))
    lost = 0
    for number in range(20):
        path, name, count = rng.choice([(files[0], "b", 20), (files[1], "a", 200)])
        whole = path.read_bytes()
        path.write_bytes(harmed(whole, rng))
        with Index.open(folder) as index:
            found = index.search(vectors=made(1)[0], k=300)
            assert {key for key in found.ids if key.startswith(name)} == {f"{name}{i}" for i in range(count)}, number
            assert len(found) + found.unreadable == 220
            verified = index.verify(sample=2)
            assert {each.segment for each in verified.damage} <= {path.name}
            assert bool(verified.damage) == bool(found.unreadable)
            lost += bool(verified.damage)
        path.write_bytes(whole)
    assert lost >= 18  # a few bytes are between the arrays


def test_a_segment_that_may_not_be_read_is_named_and_the_others_are_searched(folder, monkeypatch):
    real = Segment.open

    def forbidden(path: Path) -> Segment:
        if path == first(folder):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path)

    monkeypatch.setattr(Segment, "open", forbidden)
    with Index.open(folder, write=True) as index:
        found = index.search(vectors=made(1)[0], k=300)
        assert (len(found), found.unreadable) == (20, 200)
        assert [str(each) for each in index.verify(sample=2).damage] == [
            "segment-000001.seg: it cannot be read (Permission denied)"
        ]
        assert [each.segment for each in index.compact().damaged] == ["segment-000001.seg"]


def test_a_folder_that_may_not_be_looked_into_is_named(folder, monkeypatch):
    def forbidden(self: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "is_file", forbidden)
    with pytest.raises(SearchError, match=r"Cannot open .*index: Permission denied"):
        Index.open(folder)


def test_pictures_that_are_all_damaged_are_not_taken_for_missing(tmp_path):
    """Else a search for pictures would quietly answer with texts."""
    with Index.create(tmp_path, manifest(sets={"image": K, "text": K})) as index:
        index.add(batch("a", 20))
        index.add(VectorBatch("text", [Entry("t")], made(1)))
    overwrite(first(tmp_path), 100, bytes(400))
    with Index.open(tmp_path) as index:
        found = index.search(vectors=made(1)[0])
        assert (found.side, found.ids, found.unreadable) == ("image", [], 20)


def test_what_verify_found_is_told_where_it_cannot_be_kept(folder, monkeypatch):
    overwrite(first(folder), 500, b"x" * 64)

    def full(*_: object) -> None:
        raise SearchError("The disk is full.")

    with Index.open(folder, write=True) as index:
        monkeypatch.setattr(index._backend._store, "write_value", full)
        verified = index.verify(sample=2)
        assert [each.segment for each in verified.damage] == ["segment-000001.seg"]
        assert verified.audit is not None
        assert verified.remark == "The figures could not be stored: The disk is full."


def test_a_damaged_sketch_is_not_used_and_made_again(folder, prepared):
    with LocalBackend.open(folder, write=True) as backend:
        backend.optimize()
        expected = [backend.search("image", query, 5) for query in made(20, 7)]
    for name in ("engine", "means"):
        (path,) = folder.glob(f"*.{name}.seg")
        overwrite(path, 80, b"\xff" * 400)
    with Index.open(folder) as reader:
        for query, known in zip(made(20, 7), expected, strict=True):
            assert reader.search(vectors=query, k=5).ids == [item.id for item in known.items]
            assert len(reader.search(vectors=query, k=5, mode="fast")) == 5
        assert len({each.segment for each in reader.verify(sample=2).damage}) == 2  # it may not write
    with Index.open(folder, write=True) as index:
        verified = index.verify(sample=2)
        assert verified.damage == []
        assert len(verified.repaired) == 2
        assert index.verify(sample=2).repaired == []


def test_every_damaged_stretch_counts(folder, monkeypatch):
    monkeypatch.setattr("polysem.search.store.segments._CHUNK", 50 * K * DIM * 4)
    with Index.open(folder, write=True) as index:
        index.add(batch("c", 200, seed=3))
    last = sorted(folder.glob("segment-??????.seg"))[-1]
    for row in (10, 160):
        overwrite(last, 64 + row * K * DIM * 4, b"\xff" * 64)
    with Index.open(folder) as index:
        lost = index.verify(sample=2).lost[last.name]
        assert set(lost) == {f"c{i}" for i in (*range(50), *range(150, 200))}


def test_vectors_that_are_added_can_be_searched(tmp_path):
    """What `add` accepts, a search does too, also after rounding."""
    for dtype in ("float32", "float16"):
        with Index.create(tmp_path / dtype, manifest(dtype=dtype)) as index:
            for number, norm in enumerate((0.9911, 1.0, 1.0089)):
                index.add(VectorBatch("image", [Entry(f"{number}")], norm * made(1, number)))
            assert len(index.search(vectors=made(1, 9)[0])) == 3
            with pytest.raises(ValueError, match=r"norm 1\.01"):
                index.add(VectorBatch("image", [Entry("x")], 1.01 * made(1)))


def test_removing_is_one_step(tmp_path, monkeypatch):
    photos, model = make_photos(tmp_path / "photos"), tiny_model(tmp_path)
    with Index.create(tmp_path / "index", model) as index:
        index.add(photos)
        writer = index._backend._store
        real = type(writer)._delete
        calls = []

        def stopped(self, ids, side):
            calls.append(side)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return real(self, ids, side)

        monkeypatch.setattr(type(writer), "_delete", stopped)
        with pytest.raises(KeyboardInterrupt):
            index.remove(["red.png"])
        assert index.stats().by_side == {"image": 4, "text": 8}


def test_true_is_not_one(tmp_path):
    with Index.create(tmp_path / "index", manifest()) as index:
        entries = [Entry("n", metadata={"x": 1}), Entry("t", metadata={"x": True})]
        index.add(VectorBatch("image", entries, made(2)))
        for _ in range(2):
            assert index.search(vectors=made(1)[0], where="x = 1").ids == ["n"]
            assert index.search(vectors=made(1)[0], where="x = true").ids == ["t"]


def test_a_damaged_database_is_an_error_with_a_remedy(folder):
    database = folder / "index.sqlite"
    size = database.stat().st_size
    for page in range(1, size // 4096):
        content = database.read_bytes()
        overwrite(database, page * 4096, b"\xa5" * 4096)
        told = ""
        try:
            with Index.open(folder) as index:
                index.search(vectors=made(1)[0], where="id = 'a1'")
                index.stats()
                index.verify(sample=2)
        except SearchError as error:
            told = str(error)
        assert not told or str(folder) in told, page
        database.write_bytes(content)


def test_a_full_disk_while_preparing_does_not_deny_what_was_added(folder, prepared, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise SearchError("The disk is full.")

    with Index.open(folder, write=True) as index:
        monkeypatch.setattr(index._backend._store, "attach", full)
        with pytest.raises(SearchError, match=r"items are safe in the index.*The disk is full"):
            index.add(batch("c", 200, seed=3))
        assert index.stats().items == 420


def test_an_audit_knows_that_everything_was_replaced(folder):
    with Index.open(folder, write=True) as index:
        index.verify(sample=2)
        assert not index.stats().changed_since_audit
        index.add(batch("a", 200, seed=5))
        assert index.stats().changed_since_audit
