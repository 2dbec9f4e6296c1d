"""The store: what it holds after each operation, what it refuses, and who may do what at once."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polysem.errors import ConfigError, InputError
from polysem.search.store import Entry, SearchError, Side, Store, VectorBatch, schema, segments, snapshot, writer
from search.small_indexes import DIM, SETS, batch, manifest, sets
from waiting import LONG


def contents(store: Store, side: Side = "image") -> dict[str, float]:
    """Each item and the value its vectors tell."""
    snapshot = store.snapshot()
    found = {item.id: snapshot.vectors(side, [item.position]) for item in snapshot.iterate_items(side)}
    assert all((vectors == vectors.flat[0]).all() for vectors in found.values())
    assert snapshot.mask(side).sum() == len(found)
    return {key: float(vectors.flat[0]) - 1 for key, vectors in found.items()}


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.create(tmp_path / "index", manifest()) as made:
        yield made


def test_items_come_back_as_they_were_added(store: Store) -> None:
    entry = Entry("x", "a/b.jpg", "a dog", {"year": 2020, "deep": {"list": [1, None, "é"]}}, ("dog", "beach"), "h1")
    before = time.time()
    assert store.add(VectorBatch("image", [entry], sets([5]))) == (1, 0)
    (item,) = store.snapshot().find(["x", "missing"])
    assert item[:2] == ("x", "image")
    assert (item.path, item.caption, item.metadata, item.labels, item.hash) == (
        entry.path,
        entry.caption,
        entry.metadata,
        entry.labels,
        entry.hash,
    )
    assert before - 1 < item.added < time.time() + 1
    assert contents(store) == {"x": 5}
    assert [item.id for item in store.snapshot().items("image", [0])] == ["x"]


def test_sides_have_their_own_ids_and_set_sizes(store: Store) -> None:
    store.add(batch({"1": 1, "2": 2}), batch({"1": 7}, "text"))
    assert contents(store) == {"1": 1, "2": 2}
    assert contents(store, "text") == {"1": 7}
    assert store.snapshot().views("text")[0].vectors.shape == (1, SETS["text"], DIM)
    assert store.remove(["1"], side="text") == 1
    assert contents(store) == {"1": 1, "2": 2}
    store.add(batch({"1": 7}, "text"))
    assert store.remove(["1", "nobody"]) == 2
    assert (contents(store), contents(store, "text")) == ({"2": 2}, {})


def test_adding_an_id_again_replaces_it(store: Store) -> None:
    store.add(batch({"a": 1, "b": 2}, caption="old"))
    assert store.add(batch({"b": 3, "c": 4}, caption="new")) == (1, 1)
    assert contents(store) == {"a": 1, "b": 3, "c": 4}
    assert [item.caption for item in store.snapshot().find(["a", "b"])] == ["old", "new"]
    assert store.snapshot().mask("image").tolist() == [True, False, True, True]
    assert store.snapshot().stats()[:4] == (3, {"image": 3, "text": 0}, 1, 2)


def test_the_index_is_there_after_closing(tmp_path: Path) -> None:
    with Store.create(tmp_path, manifest(model="dive", preprocessing={"size": 224})) as store:
        store.add(batch({"a": 1}))
        store.write_value("recall", {"recall@10": 0.97})
    with Store.open(tmp_path) as store:
        assert store.manifest == manifest(model="dive", preprocessing={"size": 224})
        assert contents(store) == {"a": 1}
        assert store.snapshot().read_value("recall") == {"recall@10": 0.97}
        assert store.snapshot().read_value("other") is None
        assert store.snapshot().verify() == []


def test_arrays_of_an_engine_travel_with_their_items(store: Store) -> None:
    for start in (0, 3):
        values = range(start, start + 3)
        sketch = np.array(values, np.int8)[:, None] * np.ones(4, np.int8)
        store.add(VectorBatch("image", [Entry(str(i)) for i in values], sets(values), {"sketch": sketch}))
    store.remove(["1"])
    store.compact()
    (view,) = store.snapshot().views("image")
    np.testing.assert_array_equal(view.segment.arrays["sketch"][:, 0], [0, 2, 3, 4, 5])
    assert view.live.all()


def test_what_is_attached_to_a_segment_goes_with_it(store: Store) -> None:
    store.add(batch({"a": 1, "b": 2}))
    store.attach(1, "exact", {"plan": "pca"}, {"rotation": np.eye(4)})
    store.close()
    with Store.open(store.folder, write=True) as opened:
        (view,) = opened.snapshot().views("image")
        found = view.open_attached("exact")
        assert found is not None
        assert found.about == {"plan": "pca"}
        np.testing.assert_array_equal(found.arrays["rotation"], np.eye(4))
        assert view.open_attached("other") is None
        with pytest.raises(InputError, match="no segment 7"):
            opened.attach(7, "exact", {}, {})
        with pytest.raises(InputError, match="small letters"):
            opened.attach(1, "../x", {}, {})
        path = opened.folder / "segment-000001.exact.seg"
        content = bytearray(path.read_bytes())
        content[64] ^= 1
        path.write_bytes(content)
        assert [found.segment for found in opened.snapshot().verify()] == [path.name]
        assert opened.snapshot().damaged_ids(opened.snapshot().verify()[0]) == []
        path.write_bytes(b"")
        assert [found.segment for found in opened.snapshot().verify()] == [path.name]
        assert view.open_attached("exact") is None
        opened.attach(1, "exact", {}, {"rotation": np.eye(4)})
        assert opened.snapshot().verify() == []
        opened.remove(["a"])
        opened.compact()
        assert not path.exists()
        assert view.open_attached("exact") is None


def test_hashes_tell_what_is_unchanged(store: Store) -> None:
    store.add(batch({"a": 1}, hash="h"), batch({"b": 1}), batch({"c": 1}, "text", hash="t"))
    assert store.snapshot().hashes(["a", "b", "c", "d"], "image") == {"a": "h", "b": None}


def test_compacting_gives_back_the_space_and_changes_nothing_else(store: Store, tmp_path: Path) -> None:
    for start in range(0, 60, 10):
        store.add(batch({str(i): i for i in range(start, start + 10)}, caption=f"from {start}"))
    store.add(batch({"t": 1}, "text"))
    store.remove([str(i) for i in range(0, 60, 2)])
    before = contents(store)
    old = store.snapshot()
    done = store.compact()
    assert (done.rewritten, done.dropped_rows, done.damaged) == (6, 30, [])
    assert contents(store) == before
    assert store.snapshot().stats()[:4] == (31, {"image": 30, "text": 1}, 0, 2)
    assert sorted(path.name for path in (tmp_path / "index").glob("segment*")) == [
        "segment-000007.seg",
        "segment-000008.seg",
    ]
    assert {item.id for item in old.iterate_items("image")} == set(before)
    assert old.vectors("image", [1])[0, 0, 0] == 2
    assert [item.id for item in store.snapshot().search_words("50", "image")] == ["51", "53", "55", "57", "59"]
    assert store.compact()[:2] == (0, 0)
    assert store.snapshot().verify() == []


def test_a_segment_of_dead_rows_alone_is_dropped(store: Store, tmp_path: Path) -> None:
    store.add(batch({"a": 1}))
    store.remove(["a"])
    assert store.compact()[:2] == (1, 1)
    assert not list((tmp_path / "index").glob("segment*"))
    assert contents(store) == {}
    store.add(batch({"a": 2}))
    assert contents(store) == {"a": 2}
    assert store.snapshot().views("image")[0].number == 2  # never a number that was used before


def test_compacting_keeps_segments_within_their_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(12):
        store.add(batch({str(i): i}))
    size = store.snapshot().views("image")[0].segment.bytes
    monkeypatch.setattr(writer, "SEGMENT_BYTES", 5 * size)
    store.compact()
    assert [view.rows for view in store.snapshot().views("image")] == [5, 5, 2]
    assert contents(store) == {str(i): i for i in range(12)}


@pytest.mark.parametrize(
    "key",
    [
        "'; DROP TABLE items; --",
        'a"b',
        "new\nline",
        "🐕‍🦺",
        "é",
        "e\u0301",
        " ",
        "a\\b",
        "ünïcödé/Ω.jpg",
        "\x01",
        "$.a",
        "%_",
        "x" * 5000,
    ],
)
def test_ids_of_any_unicode(store: Store, key: str) -> None:
    store.add(batch({key: 1, "other": 2}))
    store.add(batch({key: 3}))
    assert [item.id for item in store.snapshot().find([key])] == [key]
    assert contents(store) == {key: 3, "other": 2}
    assert store.remove([key]) == 1
    assert contents(store) == {"other": 2}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Entry("a\0b"), "NUL"),
        (Entry(""), "empty id"),
        (Entry("\udcff.jpg"), "not valid Unicode"),
        (Entry(5), "must be a text"),  # type: ignore[arg-type]
        (Entry("a", path="x\0"), "path holds the character NUL"),
        (Entry("a", caption=5), "caption must be a text"),  # type: ignore[arg-type]
        (Entry("a", labels="dog"), "labels are a list"),
        (Entry("a", labels=[1]), "label must be a text"),  # type: ignore[list-item]
        (Entry("a", metadata={"x": float("nan")}), "must be JSON"),
        (Entry("a", metadata={"x": {1, 2}}), "must be JSON"),
        (Entry("a", metadata={"x": [{"y": 2**64}]}), "64 bits"),
        (Entry("a", metadata={'q"': 1}), "quotation marks"),
        (Entry("a", metadata={"x": {"": 1}}), "metadata name ''"),
        (Entry("a", metadata={1: 2}), "metadata name 1"),  # type: ignore[dict-item]
        (Entry("a", metadata={"x": "\0"}), "NUL"),
    ],
)
def test_what_could_not_be_found_again_is_refused(store: Store, tmp_path: Path, given: Entry, message: str) -> None:
    store.add(batch({"before": 1}))
    with pytest.raises(InputError, match=message):
        store.add(batch({"good": 2}), VectorBatch("image", [Entry("ok"), given], sets([1, 2])))
    assert contents(store) == {"before": 1}
    assert len(list((tmp_path / "index").glob("segment*"))) == 1


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.ones((2, 2, DIM), np.float32), r"shape \(2, 3, 6\), got float32 of shape \(2, 2, 6\)"),
        (np.ones((2, 3, DIM + 1), np.float32), "shape"),
        (np.ones((3, 3, DIM), np.float32), "shape"),
        (np.ones((2, 3, DIM), np.int64), "int64"),
        (sets([1, np.nan]), "Item 'b' has NaN"),
        (sets([1, np.inf]), "Item 'b' has NaN, infinity"),
        (sets([1, -1]), "Item 'b' has a vector of zeros"),
    ],
)
def test_wrong_vectors_are_refused_by_the_name_of_their_item(store: Store, vectors: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        store.add(VectorBatch("image", [Entry("a"), Entry("b")], vectors))
    assert contents(store) == {}


def test_float16_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    with Store.create(tmp_path, manifest(dtype="float16")) as store:
        store.add(batch({"a": 1}))
        assert store.snapshot().views("image")[0].vectors.dtype == np.float16
        with pytest.raises(InputError, match="more than float16 holds"):
            store.add(batch({"b": 1e6}))


def test_ids_given_twice_are_refused(store: Store) -> None:
    with pytest.raises(InputError, match="'a' is given twice"):
        store.add(VectorBatch("image", [Entry("a"), Entry("a")], sets([1, 2])))
    with pytest.raises(InputError, match="same id"):
        store.add(batch({"a": 1}), batch({"a": 2}))
    with pytest.raises(InputError, match="list of ids"):
        store.remove("abc")
    with pytest.raises(InputError, match="holds image and text, got the side 'video'"):
        store.add(batch({"a": 1}).__class__("video", [Entry("a")], sets([1])))  # type: ignore[arg-type]


def test_an_empty_index_and_empty_operations(store: Store) -> None:
    assert store.add() == (0, 0)
    assert store.add(VectorBatch("image", [], np.empty((0, 3, DIM)))) == (0, 0)
    assert store.remove([]) == 0
    snapshot = store.snapshot()
    assert snapshot.rows("image") == 0
    assert snapshot.mask("image").shape == snapshot.mask("image", "year > 3").shape == (0,)
    assert snapshot.items("image", []) == []
    assert snapshot.vectors("image", []).shape == (0, 3, DIM)
    assert store.snapshot().stats().items == 0
    assert store.compact()[:2] == (0, 0)
    assert store.snapshot().verify() == []


def test_positions_outside_are_refused(store: Store) -> None:
    store.add(batch({"a": 1, "b": 2}))
    store.remove(["a"])
    for wrong in ([2], [-1]):
        with pytest.raises(InputError, match="positions 0 to 1"):
            store.snapshot().items("image", wrong)
    with pytest.raises(InputError, match=r"position 0 .* was removed"):
        store.snapshot().items("image", [0])


def test_filters_choose_positions(store: Store) -> None:
    for start in (0, 4):
        entries = [
            Entry(str(i), labels=["even" if i % 2 == 0 else "odd"], metadata={"n": i}) for i in range(start, start + 4)
        ]
        store.add(VectorBatch("image", entries, sets(range(start, start + 4))))
    store.add(batch({"5": 1}, "text", metadata={"n": 100}))
    store.remove(["6"])
    snapshot = store.snapshot()
    assert np.flatnonzero(snapshot.mask("image", "label = 'even' and n > 1")).tolist() == [2, 4]
    assert np.flatnonzero(snapshot.mask("image", "id in ('5', '6') or n = 0")).tolist() == [0, 5]
    assert np.flatnonzero(snapshot.mask("image", "side = 'text'")).tolist() == []
    assert [item.id for item in snapshot.iterate_items(where="n >= 7")] == ["7", "5"]


@pytest.mark.parametrize("full_text", [True, False])
def test_words_find_captions_and_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_text: bool) -> None:
    if not full_text:
        monkeypatch.setattr(schema, "has_words_module", lambda connection: False)
    with Store.create(tmp_path, manifest()) as store:
        captions = ["A dog on the beach", "two dogs", 'a "cat" OR NOT', "", None]
        store.add(VectorBatch("image", [Entry(f"pic{i}", caption=c) for i, c in enumerate(captions)], sets(range(5))))
        store.add(batch({"t": 1}, "text", caption="dog"))

        def found(text: str, where: str | None = None) -> list[str]:
            return [item.id for item in store.snapshot().search_words(text, "image", where=where)]

        assert store.snapshot().stats().words is full_text
        assert found("DOG beach")[0] == "pic0"  # both words are better than one
        assert set(found("beach dogs")) == {"pic0", "pic1"}
        assert set(found("dog")) == ({"pic0"} if full_text else {"pic0", "pic1"})
        assert found('"cat" (*') == ["pic2"]
        assert found("pic4") == ["pic4"]
        assert found("beach pic1 pic4", "id != 'pic1' and caption is not null") == ["pic0"]
        store.remove(["pic0"])
        assert "pic0" not in found("dog")
        store.add(batch({"pic1": 1}, caption="a cat"))
        assert set(found("cat")) == {"pic1", "pic2"}
        assert found("*()") == []


def test_an_index_with_full_text_is_read_but_not_changed_without_the_module(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(batch({"a": 1}, caption="dog"))
    store.close()
    monkeypatch.setattr(schema, "has_words_module", lambda connection: False)
    with Store.open(store.folder) as reader:
        assert not reader.snapshot().stats().words
        assert [item.id for item in reader.snapshot().search_words("dog", "image")] == ["a"]
    with pytest.raises(SearchError, match="lacks FTS5"):
        Store.open(store.folder, write=True)
    monkeypatch.undo()
    Store.open(store.folder, write=True).close()


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 99), max_size=4)),
        st.tuples(st.just("remove"), st.sets(st.sampled_from("abcdefgh"), max_size=4)),
        st.tuples(st.just("compact"), st.none()),
        st.tuples(st.just("open"), st.none()),
    ),
    max_size=12,
)


@settings(max_examples=15, deadline=None)
@given(OPERATIONS)
def test_any_sequence_of_operations_equals_a_dict(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, Any]]
) -> None:
    expected: dict[str, float] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)  # for speed: nothing crashes here
        store = Store.create(tmp_path_factory.mktemp("any"), manifest())
        for kind, given in operations:
            if kind == "add":
                store.add(batch(given))
                expected |= given
            elif kind == "remove":
                assert store.remove(given) == len(given & expected.keys())
                expected = {key: value for key, value in expected.items() if key not in given}
            elif kind == "compact":
                store.compact()
                assert store.snapshot().stats().dead == 0
            else:
                store.close()
                store = Store.open(store.folder, write=True)
            assert contents(store) == expected
            assert store.snapshot().stats().items == len(expected)
        assert store.snapshot().verify() == []
        store.close()


def test_one_writer_at_a_time_and_readers_beside_it(store: Store) -> None:
    with pytest.raises(SearchError, match="being written by another process"):
        Store.open(store.folder, write=True)
    with pytest.raises(SearchError, match="being written"):
        Store.create(store.folder, manifest())
    with Store.open(store.folder) as first, Store.open(store.folder) as second:
        store.add(batch({"a": 1}))
        assert contents(first) == contents(second) == {"a": 1}
        for change in (lambda: first.add(batch({"b": 1})), lambda: first.remove(["a"]), first.compact):
            with pytest.raises(SearchError, match="open for reading"):
                change()
    with pytest.raises(SearchError, match="closed"):
        first.snapshot()
    store.close()
    store.close()
    Store.open(store.folder, write=True).close()


def test_a_snapshot_does_not_change(store: Store) -> None:
    store.add(batch({"a": 1, "b": 2}))
    old = store.snapshot()
    store.add(batch({"b": 9, "c": 3}))
    store.remove(["a"])
    store.compact()
    store.close()
    assert {item.id for item in old.iterate_items()} == {"a", "b"}
    assert [item.id for item in old.items("image", [0, 1])] == ["a", "b"]
    assert old.vectors("image", [0, 1])[:, 0, 0].tolist() == [2, 3]
    assert old.mask("image", "id = 'b'").tolist() == [False, True]
    assert old.verify() == []
    with Store.open(store.folder) as fresh:
        assert contents(fresh) == {"b": 9, "c": 3}


def test_a_reader_between_commit_and_deletion_tries_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader has read the old list of segments when the writer compacts and deletes their files."""
    store.add(batch({"a": 1}))
    store.add(batch({"b": 2}))
    reader = Store.open(store.folder)
    real, calls = segments.Segment.open, []

    def late(path: Path) -> segments.Segment:
        calls.append(path.name)
        if len(calls) == 1:
            monkeypatch.setattr(segments.Segment, "open", real)
            store.compact()
            monkeypatch.setattr(segments.Segment, "open", late)
        return real(path)

    monkeypatch.setattr(segments.Segment, "open", late)
    assert contents(reader) == {"a": 1, "b": 2}
    assert reader.snapshot().damaged == []
    assert calls == ["segment-000001.seg", "segment-000002.seg", "segment-000003.seg"]


READER = """
import sys, time
from pathlib import Path
from polysem.search.store import Store
folder, enough, reads = Path(sys.argv[1]), Path(sys.argv[2]), 0
store = Store.open(folder)
print("ready", flush=True)
while not (folder / "stop").exists():
    snapshot = store.snapshot()
    assert not snapshot.damaged, snapshot.damaged
    items = list(snapshot.iterate_items("image"))
    # Every state the writer commits holds ten items of one generation.
    generations = {item.metadata["generation"] for item in items}
    assert len(items) == 10 and len(generations) == 1, (len(items), generations)
    vectors = snapshot.vectors("image", [item.position for item in items])
    assert set(vectors.flat) == {generations.pop() + 1.0}
    assert snapshot.mask("image").sum() == 10
    reads += 1
    if reads == 6:
        enough.touch()
print(reads)
"""


@pytest.mark.slow
def test_two_readers_and_a_writer_at_once(store: Store, tmp_path: Path) -> None:
    ids = [str(i) for i in range(10)]

    def generation(number: int) -> VectorBatch:
        return batch(dict.fromkeys(ids, number), metadata={"generation": number})

    store.add(generation(0))
    command = [sys.executable, "-c", READER, str(store.folder)]
    enough = [tmp_path / f"reader {number} has read enough" for number in range(2)]
    readers = [
        subprocess.Popen([*command, str(each)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for each in enough
    ]
    try:
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
        number = 0
        while number < 30 or not all(each.exists() for each in enough):  # both read while it writes
            number += 1
            store.add(generation(number))
            if number % 3 == 0:
                store.compact()
            if any(reader.poll() is not None for reader in readers):
                break  # its error is told below
    finally:
        (store.folder / "stop").touch()
        results = [reader.communicate(timeout=LONG) for reader in readers]
    for out, error in results:
        assert error == ""
        assert int(out) > 5


def test_threads_share_a_store(store: Store) -> None:
    store.add(batch({str(i): i for i in range(50)}))
    wrong: list[object] = []

    def read() -> None:
        for _ in range(20):
            snapshot = store.snapshot()
            if len(list(snapshot.iterate_items("image"))) != 50 or snapshot.verify():
                wrong.append(snapshot)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(5):
        store.add(batch({str(i): 100 + i}))
    for thread in threads:
        thread.join()
    assert not wrong


def test_folders_that_hold_no_index_are_named(tmp_path: Path) -> None:
    with pytest.raises(SearchError, match=r"holds no index.*polysem index"):
        Store.open(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(SearchError, match="Cannot create"):
        Store.create(tmp_path / "file" / "index", manifest())
    sqlite3.connect(tmp_path / schema.NAME).close()
    (tmp_path / schema.NAME).touch()
    with pytest.raises(SearchError, match="holds no index"):
        Store.open(tmp_path)
    Store.create(tmp_path, manifest()).close()  # as after a creation that was interrupted
    with pytest.raises(SearchError, match="holds an index already"):
        Store.create(tmp_path, manifest())


def test_an_index_of_another_version_is_refused(store: Store) -> None:
    store.close()
    connection = sqlite3.connect(store.folder / schema.NAME)
    connection.execute("UPDATE manifest SET value = '7' WHERE name = 'version'")
    connection.commit()
    connection.close()
    for write in (False, True):
        with pytest.raises(SearchError, match="version 7, this polysem reads 1"):
            Store.open(store.folder, write)


def test_manifests_say_how_they_differ() -> None:
    assert manifest().differences(manifest(model="elsewhere")) == []
    found = manifest().differences(manifest(fingerprint="xyz", dim=9))
    assert found == ["fingerprint: 'abc' in the index, 'xyz' now", "dim: 6 in the index, 9 now"]
    for wrong in ({"dtype": "int8"}, {"sets": {}}, {"sets": {"video": 3}}, {"dim": 0}):
        with pytest.raises(ConfigError):
            manifest(**wrong)


def test_a_copied_index_works(store: Store, tmp_path: Path) -> None:
    store.add(batch({"a": 1}))
    store.close()
    shutil.copytree(store.folder, tmp_path / "copy")
    with Store.open(tmp_path / "copy", write=True) as copy:
        copy.add(batch({"b": 2}))
        assert contents(copy) == {"a": 1, "b": 2}


def test_words_module_is_there() -> None:
    """The Python of the tests has full-text search, or the tests above would prove little."""
    assert schema.has_words_module(sqlite3.connect(":memory:"))
    assert snapshot._WORD.findall("it's a dog-house, ünï") == ["it", "s", "a", "dog", "house", "ünï"]


@pytest.mark.slow
def test_a_large_index_opens_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 100_000
    with Store.create(tmp_path, manifest(sets={"image": 1}, dim=4)) as store:
        vectors = np.ones((n, 1, 4), np.float32)
        store.add(VectorBatch("image", [Entry(f"item {i}", metadata={"n": i}) for i in range(n)], vectors))
        store.remove([f"item {i}" for i in range(0, n, 50)])
    started = time.thread_time()
    with Store.open(tmp_path) as store:
        snapshot = store.snapshot()
        assert snapshot.mask("image").sum() == n - n // 50
        assert [item.id for item in snapshot.items("image", [1, n - 1])] == ["item 1", f"item {n - 1}"]
        assert snapshot.stats().items == n - n // 50
    assert time.thread_time() - started < 1
