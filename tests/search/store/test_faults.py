"""What goes wrong outside: kills, damaged files, full disks, forbidden folders."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polysem.search.store import Entry, SearchError, Store, VectorBatch, schema, segments, snapshot, writer
from search.small_indexes import DIM, batch, manifest, sets
from waiting import LONG

HERE = Path(__file__).parents[1]

pytestmark = [pytest.mark.crash, pytest.mark.slow]


def contents(store: Store) -> dict[str, float]:
    """The items that can be read, with the value their vectors tell."""
    now = store.snapshot()
    items = [item for item in now.iterate_items("image") if item.position >= 0]
    found = now.vectors("image", [item.position for item in items])
    return {item.id: float(each.flat[0]) - 1 for item, each in zip(items, found, strict=True)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Three segments of two items."""
    with Store.create(tmp_path / "index", manifest()) as made:
        for i in range(3):
            made.add(batch({f"a{i}": i, f"b{i}": 10 + i}))
        yield made


ALL = {"a0": 0, "b0": 10, "a1": 1, "b1": 11, "a2": 2, "b2": 12}
OTHERS = {key: value for key, value in ALL.items() if key[1] != "1"}


@pytest.mark.slow
def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "kill_store.py"), str(tmp_path), "40", "1"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=2 * LONG)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert sum(report["interrupted"].values()) == 40
    assert report["acknowledged"] > 0
    assert report["interrupted"].get("nothing", 0) < 35
    assert sum(report["creation"].values()) == 10


@pytest.mark.slow
def test_a_writer_killed_at_every_step_leaves_all_or_nothing(tmp_path: Path) -> None:
    """Before and after every write, sync, rename, deletion and statement of one add, one remove and one compact."""
    command = [sys.executable, str(HERE / "kill_store.py"), str(tmp_path), "steps"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=2 * LONG)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    for kind in ("add", "remove", "compact"):
        assert report[kind]["undone"] >= 10
        assert report[kind]["done"] >= 1


def damage(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        old = file.read(1)
        file.seek(place)
        file.write(bytes([old[0] ^ 16]))


def lose(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def garble(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def confuse(path: Path) -> None:
    """A segment, whole, of another index."""
    segments.write(path, {"vectors": segments.Column.of(np.ones((1, 3, DIM), np.float32))})


@pytest.mark.parametrize("harm", [lose, cut, empty, garble, confuse, lambda path: damage(path, 0)])
def test_a_segment_that_cannot_be_read_is_named_and_the_others_work(store: Store, harm: Callable[[Path], None]) -> None:
    store.close()
    harm(store.folder / "segment-000002.seg")
    with Store.open(store.folder, write=True) as opened:
        now = opened.snapshot()
        assert [(found.segment, found.rows) for found in now.damaged] == [("segment-000002.seg", None)]
        assert opened.snapshot().verify() == now.damaged
        assert now.damaged_ids(now.damaged[0]) == ["a1", "b1"]
        assert contents(opened) == OTHERS
        assert [item.position for item in now.find(["a1"])] == [-1]
        assert now.mask("image").tolist() == [True] * 4
        assert now.mask("image", "id like 'a%'").tolist() == [True, False, True, False]
        # The remedy: add the items again. Then nothing of the damaged segment counts, and it can go.
        assert opened.compact().damaged == now.damaged
        opened.add(batch({"a1": 1, "b1": 11}))
        assert contents(opened) == ALL
        assert opened.compact().damaged == []
        assert opened.snapshot().verify() == []
        assert contents(opened) == ALL


def test_a_flipped_bit_is_found_and_never_copied(store: Store) -> None:
    store.close()
    damage(store.folder / "segment-000002.seg", 70)
    with Store.open(store.folder, write=True) as opened:
        (found,) = opened.snapshot().verify()
        assert str(found) == "segment-000002.seg, rows 0 to 1: the checksum of 'vectors' differs"
        assert opened.snapshot().damaged_ids(found) == ["a1", "b1"]
        done = opened.compact()
        assert (done.rewritten, done.damaged) == (2, [found])  # the other two
        assert opened.snapshot().verify() == [found]
        assert {key: value for key, value in contents(opened).items() if key in OTHERS} == OTHERS
        opened.remove(["a1", "b1"])
        assert opened.compact().rewritten == 1
        assert opened.snapshot().verify() == []


def test_a_damaged_database_is_named(store: Store) -> None:
    store.add(VectorBatch("image", [Entry(f"{i:09}", caption="x" * 500) for i in range(200)], sets(range(200))))
    store.close()
    path = store.folder / schema.NAME
    for page in range(3, path.stat().st_size // 4096 - 1):
        with path.open("r+b") as file:
            file.seek(page * 4096)
            file.write(os.urandom(4096))
    try:
        with Store.open(store.folder) as opened:
            assert schema.NAME in {found.segment for found in opened.snapshot().verify()}
    except SearchError as error:
        assert "restore it from a copy" in str(error)  # noqa: PT017
    path.write_bytes(b"no database at all" * 1000)
    for write in (False, True):
        with pytest.raises(SearchError, match=r"Cannot .*index.*not a database.*restore it from a copy"):
            Store.open(store.folder, write)


def fail_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, code: int, call: int) -> list[int]:
    """Let the `call`-th use of a function fail as the system does."""
    real, calls = getattr(owner, name), [0]

    def fails(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise OSError(code, os.strerror(code))
        return real(*args, **options)

    monkeypatch.setattr(owner, name, fails)
    return calls


@pytest.mark.parametrize("name", ["write", "fsync", "open"])
@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.ENOSPC, "free some space"), (errno.EACCES, "permissions"), (errno.EIO, "Fix the problem")],
)
def test_a_refusal_anywhere_rolls_back(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str, code: int, remedy: str
) -> None:
    files = sorted(os.listdir(store.folder))
    for call in range(1, 20):
        with monkeypatch.context() as patch:
            calls = fail_at(patch, os, name, code, call)
            try:
                store.add(batch({"a0": 50, "new": 51}), batch({"new": 1}, "text"))
            except SearchError as error:
                assert remedy in str(error)  # noqa: PT017
                assert "made in full or not at all; run the command again" in str(error)  # noqa: PT017
                assert str(store.folder) in str(error)  # noqa: PT017
            else:
                assert calls[0] < call
                break
        assert contents(store) == ALL
        assert sorted(os.listdir(store.folder)) == files
        assert store.snapshot().verify() == []
    assert call > 2
    assert contents(store) == {**ALL, "a0": 50, "new": 51}


def test_a_refusal_to_read_says_nothing_of_changes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("polysem.search.store.schema.connect", refuse)
    with pytest.raises(SearchError, match=r"Cannot read .*: Input/output error\. Fix the problem\.$"):
        store.snapshot()


def test_a_full_disk_while_compacting_leaves_the_old_segments(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.remove(["a1"])
    before = contents(store)
    with monkeypatch.context() as patch:
        fail_at(patch, os, "write", errno.ENOSPC, 2)
        with pytest.raises(SearchError, match="disk is full"):
            store.compact()
    assert contents(store) == before
    assert store.snapshot().verify() == []
    store.compact()
    assert contents(store) == before


def test_a_database_that_cannot_grow_rolls_back(store: Store) -> None:
    connection = store._db
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    many = [Entry(str(i), caption="x" * 1000) for i in range(100)]
    with pytest.raises(SearchError, match=r"database or disk is full.*free some space"):
        store.add(VectorBatch("image", many, sets(range(100))))
    assert contents(store) == ALL
    assert len(list(store.folder.glob("segment*"))) == 3
    connection.execute("PRAGMA max_page_count = 1000000")
    store.add(VectorBatch("image", many, sets(range(100))))
    assert len(contents(store)) == 106


LIMITED = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from small_indexes import batch
from polysem.search.store import VectorBatch, Entry, SearchError, Store
import numpy as np
with Store.open({folder!r}, write=True) as store:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
    for i in range(200):
        try:
            store.add(batch({{f"n{{i}}x{{j}}": j for j in range(20)}}, caption="word " * 40))
        except SearchError as error:
            print(i, str(error).replace("\\n", " "))
            break
"""


@pytest.mark.parametrize("limit", [1000, 60_000, 120_000])
@pytest.mark.slow
def test_a_real_limit_of_the_system_is_met_with_a_message(store: Store, limit: int) -> None:
    """The smallest stops the segment, the others the database's log."""
    store.close()
    script = LIMITED.format(tests=str(HERE), folder=str(store.folder), limit=limit)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "Cannot" in run.stdout, run.stderr
    assert "made in full or not at all" in run.stdout
    added = int(run.stdout.split()[0])
    with Store.open(store.folder, write=True) as opened:
        assert contents(opened) == {**ALL, **{f"n{i}x{j}": j for i in range(added) for j in range(20)}}
        assert opened.snapshot().verify() == []


FORBIDDEN = """
import os, sys
sys.path.insert(0, {tests!r})
from small_indexes import batch, manifest
from polysem.search.store import SearchError, Store
import numpy.ma  # numpy asks for it late, and the other user may not be allowed to read where it is installed
os.setuid(65534)
with Store.open({folder!r}) as store:
    print(sorted(item.id for item in store.snapshot().iterate_items("image")))
    print(store.snapshot().vectors("image", [0]).shape, store.snapshot().verify())
for attempt in (lambda: Store.open({folder!r}, write=True), lambda: Store.create({folder!r} + "/new", manifest())):
    try:
        attempt()
    except SearchError as error:
        print(error)
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("writing", [False, True])
@pytest.mark.slow
def test_who_may_only_read_reads(writing: bool) -> None:
    """As another user, with and without a writer at work."""
    with tempfile.TemporaryDirectory() as outside:
        Path(outside).chmod(0o755)
        store = Store.create(Path(outside) / "index", manifest())
        store.add(batch(ALL))
        if not writing:
            store.close()
        script = FORBIDDEN.format(tests=str(HERE), folder=str(store.folder))
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        store.close()
    assert run.stderr == ""
    ids, vectors, write, create = run.stdout.splitlines()
    assert ids == str(sorted(ALL))
    assert vectors == f"(1, 3, {DIM}) []"
    assert "Permission denied. Choose a folder you may write to" in write
    assert "Permission denied. Choose a folder you may write to" in create


def test_vectors_are_durable_before_the_database_speaks_of_them(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    real_sync, real_replace, real_unlink = os.fsync, Path.replace, Path.unlink

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **options: (steps.append(name), real(*args, **options))[1]

    monkeypatch.setattr(os, "fsync", noted("sync", real_sync))
    monkeypatch.setattr(Path, "replace", noted("publish", real_replace))
    monkeypatch.setattr(Path, "unlink", noted("delete", real_unlink))
    store._db.set_trace_callback(lambda text: steps.append("commit") if text == "COMMIT" else None)
    (level,) = store._db.execute("PRAGMA synchronous").fetchone()
    (mode,) = store._db.execute("PRAGMA journal_mode").fetchone()
    assert (level, mode) == (2, "wal")
    store.add(batch({"x": 1}))
    assert steps == ["sync", "publish", "sync", "commit"]
    steps.clear()
    store.compact()
    assert steps == ["sync", "publish", "sync", "commit", *["delete"] * 4]


def test_leftovers_of_a_killed_writer_are_removed_by_the_next(store: Store) -> None:
    store.close()
    for name in ("segment-000004.seg", "segment-000009.seg", "segment-000004.seg.partial"):
        (store.folder / name).write_bytes(b"left")
    (store.folder / "notes.txt").write_text("the user's own")
    with Store.open(store.folder) as reader:
        assert contents(reader) == ALL
    assert (store.folder / "segment-000004.seg").exists()  # a reader removes nothing
    with Store.open(store.folder, write=True) as opened:
        assert sorted(path.name for path in store.folder.glob("segment*")) == [
            f"segment-00000{i}.seg" for i in (1, 2, 3)
        ]
        opened.add(batch({"x": 1}))
        assert contents(opened) == {**ALL, "x": 1}
    assert (store.folder / "notes.txt").exists()


def test_a_commit_that_fails_keeps_its_files_for_the_next_opening(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync nobody knows whether the log will count; the next opening does."""

    class Fails:
        def __init__(self, real: sqlite3.Connection) -> None:
            self.real = real

        def execute(self, text: str, *rest: Any) -> Any:
            if text == "COMMIT":
                raise sqlite3.OperationalError("disk I/O error")
            return self.real.execute(text, *rest)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    real = store._db
    monkeypatch.setattr(store, "_db", Fails(real))
    with pytest.raises(SearchError, match="disk I/O error"):
        store.add(batch({"x": 1}))
    assert (store.folder / "segment-000004.seg").exists()
    assert contents(store) == ALL
    monkeypatch.setattr(store, "_db", real)
    store.add(batch({"y": 2}))  # under the same number: the old one was never spoken of
    assert contents(store) == {**ALL, "y": 2}
    assert store.snapshot().verify() == []


def test_many_small_additions_stay_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    with Store.create(tmp_path, manifest()) as store:
        for i in range(300):
            store.add(batch({str(i): i}))
            assert len(list(tmp_path.glob("segment*"))) <= 32
        assert contents(store) == {str(i): i for i in range(300)}
        assert store.snapshot().verify() == []


def test_merging_that_fails_does_not_undo_an_addition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.create(tmp_path, manifest()) as store:
        for i in range(15):
            store.add(batch({str(i): i}))
        with monkeypatch.context() as patch:
            patch.setattr(writer, "live_columns", lambda group: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
            store.add(batch({"15": 15}))
        assert contents(store) == {str(i): i for i in range(16)}
        assert len(list(tmp_path.glob("segment*"))) == 16
        store.add(batch({"16": 16}))
        assert len(list(tmp_path.glob("segment*"))) == 1
        assert contents(store) == {str(i): i for i in range(17)}


def test_too_many_open_files_are_no_damage(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.close()
    real = segments.Segment.open

    def refuses(path: Path) -> segments.Segment:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(snapshot.Segment, "open", refuses)
    with Store.open(store.folder) as reader:
        with pytest.raises(SearchError, match="ulimit -n"):
            reader.snapshot()
        monkeypatch.setattr(snapshot.Segment, "open", real)
        assert contents(reader) == ALL
        assert np.array_equal(reader.snapshot().mask("image"), np.ones(6, np.bool_))
