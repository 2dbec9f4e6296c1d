"""Milvus as the place of an index: the checks of every backend on milvus-lite and on a server, and what is its own."""

from __future__ import annotations

import importlib.util
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polysem.errors import InputError
from polysem.search.filters import Compare, Field, matches, parse
from polysem.search.milvus import Address, MilvusBackend, rows
from polysem.search.milvus.connection import MilvusConnection
from polysem.search.milvus.expressions import describe, express_certain, express_complement, express_possible
from polysem.search.store import Entry, Manifest, SearchError, VectorBatch
from search.backend_checks import DIM, SAME, SETS, BackendChecks, batch, manifest, numbered
from search.engine.support import sets
from search.filters.random_filters import random_filter, random_item
from waiting import wait_until

SERVER = Path(__file__).with_name("milvus_server.py")
pytestmark = [pytest.mark.milvus, pytest.mark.slow]


def needs(*modules: str) -> Any:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


class MilvusPlace:
    """Indexes at one address. Making a collection takes seconds: one is emptied and used again."""

    def __init__(self, prefix: str) -> None:
        self.prefix, self.made, self.open = prefix, 0, list[MilvusBackend]()
        self.last, self.shared = "", ""

    def new(self, wanted: Manifest) -> MilvusBackend:
        self.made += 1
        self.last = f"{self.prefix}/t{os.getpid()}_{self.made}"
        return self.keep(MilvusBackend.create(self.last, wanted))

    def empty(self, wanted: Manifest) -> MilvusBackend:
        if wanted != manifest():
            return self.new(wanted)
        if not self.shared:
            index = self.new(wanted)
            self.shared = self.last
            return index
        self.last = self.shared
        index = self.again(write=True)
        for part in ("image", "text"):
            for page in index._collection.pages(part, True, ["id"]):
                index._collection.delete([row["id"] for row in page])
        index._collection.delete([rows.make_key("note", name) for name in ("recall", "long")])
        return index

    def again(self, write: bool = False) -> MilvusBackend:
        return self.keep(MilvusBackend.open(self.last, write))

    def keep(self, index: MilvusBackend) -> MilvusBackend:
        self.open.append(index)
        return index

    def close(self) -> None:
        while self.open:
            self.open.pop().close()


@pytest.fixture(scope="session")
def every_lite(tmp_path_factory: pytest.TempPathFactory) -> MilvusPlace:
    pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    return MilvusPlace(f"milvus+lite:{tmp_path_factory.mktemp('milvus')}/test.db")


@pytest.fixture
def lite(every_lite: MilvusPlace) -> Iterator[MilvusPlace]:
    yield every_lite
    every_lite.close()


@pytest.fixture
def server(every_server: MilvusPlace) -> Iterator[MilvusPlace]:
    yield every_server
    every_server.close()


@pytest.fixture(scope="session")
def every_server(tmp_path_factory: pytest.TempPathFactory) -> MilvusPlace:
    """A server that all workers share and that ends with the test run."""
    if sys.platform != "linux":
        pytest.skip("the Milvus server of the tests is for Linux")
    worker = "PYTEST_XDIST_WORKER" in os.environ
    base, watched = tmp_path_factory.getbasetemp(), os.getppid() if worker else os.getpid()
    folder = (base.parent if worker else base) / "milvus-server"
    try:
        folder.mkdir()
    except FileExistsError:
        pass  # another worker starts it
    else:
        subprocess.run([sys.executable, str(SERVER), str(folder), str(watched)], check=True)
    wait_until(lambda: (folder / "port").exists() or (folder / "failed").exists(), "the Milvus server starts")
    if (folder / "failed").exists():
        pytest.skip(f"the Milvus server does not start here: {(folder / 'failed').read_text()}")
    return MilvusPlace(f"milvus+http://127.0.0.1:{(folder / 'port').read_text()}")


@needs("pymilvus", "milvus_lite")
class TestMilvusLite(BackendChecks):
    @pytest.fixture
    def place(self, lite: MilvusPlace) -> MilvusPlace:
        return lite


@needs("pymilvus", "milvus")
class TestMilvusServer(BackendChecks):
    filters = 50  # a second for each ten

    @pytest.fixture
    def place(self, server: MilvusPlace) -> MilvusPlace:
        return server

    @pytest.mark.slow
    def test_thousands_of_items_come_in_pages(self, index: MilvusBackend) -> None:
        pages_hold_everything(index)

    @pytest.mark.slow
    def test_readers_see_an_item_whole_while_it_is_replaced(self, place: MilvusPlace) -> None:
        """Its set and its caption tell of the same version, and it is never gone."""
        # A collection of its own: a busy server may show a version that was replaced long ago, here another test's.
        index = place.new(manifest())
        versions = [batch(["a", "b"], seed=seed, caption=str(seed)) for seed in range(8)]
        index.add(versions[0])
        done, wrong, reads = threading.Event(), list[str](), [0]
        reader = place.again()

        def read() -> None:
            while not done.is_set():
                found = reader.search("image", SAME, 5, mode="exact")
                if sorted(item.id for item in found.items) != ["a", "b"]:
                    wrong.append(f"items {[item.id for item in found.items]}")
                for item, own in zip(found.items, found.sets, strict=True):
                    version = versions[int(item.caption or 0)]
                    if not (own == version.vectors["ab".index(item.id)]).all():
                        wrong.append(f"{item.id} has the set of another version than {item.caption}")
                reads[0] += 1

        thread = threading.Thread(target=read)
        thread.start()
        try:
            for version in versions[1:]:
                before = reads[0]
                index.add(version)
                wait_until(lambda before=before: reads[0] > before or not thread.is_alive())
        finally:
            done.set()
            thread.join()
        assert reads[0] >= 7
        assert wrong == []
        assert [item.caption for item in index.find(["a", "b"])] == ["7", "7"]


def pages_hold_everything(index: MilvusBackend) -> None:
    count = 1150
    vectors = np.tile(sets(23, SETS["image"], DIM), (50, 1, 1))
    entries = [Entry(str(n), metadata={"n": n}) for n in range(count)]
    index.add(VectorBatch("image", entries[:900], vectors[:900]))
    index.optimize()  # a page is made of what was sealed and of what is new
    index.add(VectorBatch("image", entries[900:], vectors[900:]))
    assert index.count("image") == count
    assert sorted(map(int, index.sample("image", 5000, seed=1))) == list(range(count))
    assert index.count("image", parse("n >= 1000 and n < 1100")) == 100
    found = index.search("image", vectors[5], 50, mode="exact")
    assert [int(item.id) for item in found.items] == list(range(5, count, 23))
    assert found.scored == count
    assert index.remove([str(n) for n in range(0, count, 2)]) == count // 2
    assert index.count("image") == count // 2


def test_thousands_of_items_come_in_pages(lite: MilvusPlace) -> None:
    pages_hold_everything(lite.empty(manifest()))


def test_sets_larger_than_a_field_are_split(lite: MilvusPlace) -> None:
    wide = manifest(sets={"image": 4}, dim=4096)
    assert rows.set_fields(wide) == ["set_0", "set_1"]
    index = lite.new(wide)
    vectors = sets(3, 4, 4096)
    index.add(VectorBatch("image", [Entry(each) for each in "abc"], vectors))
    np.testing.assert_array_equal(index.vectors("image", ["c", "a"]), vectors[[2, 0]])
    assert index.verify() == []
    with pytest.raises(InputError, match="too large for Milvus"):
        MilvusBackend.create(f"{lite.prefix}/huge", manifest(sets={"image": 1000}, dim=1000))


def test_damage_is_found_and_named(lite: MilvusPlace) -> None:
    index = lite.empty(manifest())
    given, _ = numbered(6)
    index.add(given)
    own = list(rows.encode_rows(given, rows.encode_entries(given), manifest(), 0))
    own[1]["set_0"] = own[2]["set_0"]
    own[2]["set_0"] = "no base64"
    own[3]["facts"] = own[3]["facts"][1:]
    own[4]["mean"] = -own[4]["mean"]
    own[5]["item"] = "{"
    index._collection.write("image", own[1:])
    damaged = {
        index.damaged_ids(damage)[0] if index.damaged_ids(damage) else "?": damage.why for damage in index.verify()
    }
    assert set(damaged) == {"i1", "i2", "i3", "i4", "?"}
    assert "vectors of item 'i1' have changed" in damaged["i1"]
    assert "what filters ask" in damaged["i3"]


def test_a_set_that_cannot_be_read_is_left_out_and_counted(lite: MilvusPlace) -> None:
    index = lite.empty(manifest())
    given, _ = numbered(4)
    index.add(given)
    own = list(rows.encode_rows(given, rows.encode_entries(given), manifest(), 0))
    own[2]["set_0"] = "no base64"
    own[3]["item"] = "{"
    index._collection.write("image", own[2:])
    for mode in index.modes:
        found = index.search("image", SAME, 4, mode=mode)
        assert sorted(item.id for item in found.items) == ["i0", "i1"]
        assert found.unreadable == 2
    assert sorted(index.sample("image", 9)) == ["i0", "i1", "i2"]
    with pytest.raises(InputError, match="'i2' that can be read"):
        index.vectors("image", ["i2"])


def test_what_milvus_cannot_hold_is_refused_by_name(lite: MilvusPlace) -> None:
    index = lite.empty(manifest())
    for entry, message in (
        (Entry("big", caption="é" * 40_000), r"'big' has 80,\d+ bytes"),
        (Entry("big", metadata={"x": list(range(5000))}), r"'big'.* values to filter by"),
    ):
        with pytest.raises(InputError, match=message):
            index.add(batch(["fine"]), VectorBatch("image", [entry], SAME[None]))
    assert index.count("image") == 0
    with pytest.raises(InputError, match="value 'long'"):
        index.write_value("long", np.random.default_rng(0).random(20_000).tolist())
    with pytest.raises(InputError, match="choose another name"):
        index.write_value("manifest", {})


def test_an_interrupted_add_is_completed_by_the_next(lite: MilvusPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items are sent in messages; those of the messages that arrived are there, whole, and no others."""
    index = lite.empty(manifest())
    given, items = numbered(20)
    index.add(batch(["i0"], seed=9))
    connection, sent = index._collection.connection, list[int]()
    call = connection.call

    def fail_at_the_third(method: str, *given: Any, **more: Any) -> Any:
        if method == "upsert":
            if len(sent) == 2:
                raise SearchError("the server is gone")
            sent.append(len(given[1]))
        return call(method, *given, **more)

    monkeypatch.setattr("polysem.search.milvus.collection._WRITE_BYTES", 2000)
    with monkeypatch.context() as patched:
        patched.setattr(connection, "call", fail_at_the_third)
        with pytest.raises(SearchError, match="gone"):
            index.add(given)
    arrived = sum(sent)
    assert 2 <= arrived < 20
    assert sorted(index.sample("image", 99)) == sorted(f"i{n}" for n in range(arrived))
    assert index.verify() == []
    assert index.add(given) == (20 - arrived, arrived)
    np.testing.assert_array_equal(index.vectors("image", list(items)), np.stack(list(items.values())))


def test_an_index_is_made_once_and_found_again(lite: MilvusPlace) -> None:
    index = lite.new(manifest(model="dive"))
    with pytest.raises(SearchError, match="holds an index already"):
        MilvusBackend.create(lite.last, manifest())
    with pytest.raises(SearchError, match=r"no index .*/nothing.*polysem index"):
        MilvusBackend.open(f"{lite.prefix}/nothing")
    assert lite.keep(MilvusBackend.open(index.address)).manifest == manifest(model="dive")
    index.close()
    with pytest.raises(SearchError, match="There is no"):
        MilvusBackend.open("milvus+lite:nowhere/at/all.db/x")
    assert not Path("nowhere").exists()


@pytest.mark.slow
def test_an_interrupted_creation_is_begun_again(lite: MilvusPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{lite.prefix}/interrupted"
    with monkeypatch.context() as patched:
        patched.setattr("polysem.search.milvus.collection.MilvusCollection.write_value", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            MilvusBackend.create(url, manifest())
    with pytest.raises(SearchError, match="interrupted"):
        MilvusBackend.open(url)
    lite.keep(MilvusBackend.create(url, manifest()))
    assert lite.keep(MilvusBackend.open(url)).count("image") == 0


def test_a_collection_of_another_program_is_left_alone(lite: MilvusPlace) -> None:
    connection = MilvusConnection(Address.parse(f"{lite.prefix}/foreign"), create=True)
    connection.call("create_collection", "foreign", dimension=4)
    for act in (lambda url: MilvusBackend.create(url, manifest()), MilvusBackend.open):
        with pytest.raises(SearchError, match="not an index of polysem"):
            act(f"{lite.prefix}/foreign")
    assert connection.call("has_collection", "foreign")
    connection.close()


def test_a_file_in_use_by_another_process_is_said(lite: MilvusPlace, capfd: pytest.CaptureFixture[str]) -> None:
    lite.new(manifest()).close()
    lock = Path(Address.parse(lite.last).uri) / "LOCK"
    take = f"file = open({str(lock)!r}); fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    code = f"import fcntl; {take}; print('held', flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(SearchError, match=r"Cannot open .*Another process may be using it"):
            MilvusBackend.open(lite.last)
        holder.kill()
    assert capfd.readouterr().err == ""  # neither milvus-lite's log nor its traceback
    assert lite.again().count("image") == 0


@needs("pymilvus")
def test_a_server_that_is_not_there_is_said_soon(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pymilvus

    limits: list[float] = []

    class Watched(pymilvus.MilvusClient):
        def __init__(self, *given: Any, **more: Any) -> None:
            limits.append(more["timeout"])
            super().__init__(*given, **more)

    monkeypatch.setattr(pymilvus, "MilvusClient", Watched)
    with pytest.raises(SearchError, match=r"Cannot connect to Milvus at http://127.0.0.1:1: .*run this again") as found:
        MilvusBackend.open("milvus+http://me:secret@127.0.0.1:1/x")
    assert len(limits) == 1
    assert 0 < limits[0] < 10
    assert "secret" not in str(found.value)
    assert capfd.readouterr().err == ""


def test_without_pymilvus_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(SearchError, match=r"pip install 'polysem\[milvus\]'"):
        MilvusBackend.open("milvus+http://127.0.0.1:1/x")


@pytest.mark.parametrize(
    ("url", "uri", "name"),
    [
        ("milvus+http://host/photos", "http://host:19530", "photos"),
        ("milvus+http://host:1234/photos/", "http://host:1234", "photos"),
        ("milvus+https://cloud.example", "https://cloud.example:443", "polysem"),
        ("milvus+http://[::1]:19530/x", "http://[::1]:19530", "x"),
        ("milvus+lite:/a b/c.db/photos", "/a b/c.db", "photos"),
        ("milvus+lite:/a.db/c.db", "/a.db/c.db", "polysem"),
    ],
)
def test_addresses(url: str, uri: str, name: str) -> None:
    found = Address.parse(url)
    assert (found.uri, found.name) == (uri, name)
    assert Address.parse(found.url) == found


def test_options_and_secrets_of_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Address.parse("milvus+http://me:p%40ss@host/x?index=flat&consistency=bounded")
    assert (found.index, found.consistency, found.token) == ("FLAT", "Bounded", "me:p@ss")
    assert found.url == "milvus+http://host:19530/x?consistency=Bounded"
    assert "p@ss" not in repr(found) + found.url
    monkeypatch.setenv("POLYSEM_MILVUS_TOKEN", "hush")
    assert Address.parse("milvus+http://host/x").token == "hush"
    assert Address.parse("milvus+lite:x.db").uri == str(Path("x.db").absolute())


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://host/x", "looks like milvus"),
        ("milvus+ftp://me:secret@host/x", "Cannot read the address"),
        ("milvus+http://host:port/x", "Cannot read the address"),
        ("milvus+http:///x", "Cannot read the address"),
        ("milvus+lite:folder/name", r"ends in \.db"),
        ("milvus+http://host/a-b", "letters, digits and underscores"),
        ("milvus+http://host/1", "starts with no digit"),
        ("milvus+http://host/a/b", "letters, digits and underscores"),
        ("milvus+http://host/x?index=TREE", "one of HNSW"),
        ("milvus+http://host/x?shards=3", "takes the options index, consistency"),
    ],
)
def test_addresses_that_are_none(url: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as found:
        Address.parse(url)
    assert "secret" not in str(found.value)


NO_WORDS_OF_A_USER = re.compile(
    r'(?:\(|\)|not |and |or |array_contains(?:_any)?|\(facts, |\d+|[\[\], ]|ranges\["[nt][lg][0-9a-f]+"\]'
    r"|[<>]=? |-?[0-9][0-9.e+-]*|\"[0-9a-f]*\")*"
)


def test_expressions_hold_nothing_that_a_user_wrote() -> None:
    rng = random.Random(3)
    for _ in range(300):
        node = parse(random_filter(rng))
        for expression in (express_possible(node), express_certain(node), express_complement(node)):
            assert isinstance(expression, bool) or NO_WORDS_OF_A_USER.fullmatch(expression), expression
    evil = '"] > 0 or ranges["x'
    for operator in ("=", "<", "contains", "like"):
        expression = express_possible(Compare(Field((evil,)), operator, evil))  # type: ignore[arg-type]
        assert NO_WORDS_OF_A_USER.fullmatch(str(expression)), expression


def test_between_certain_and_possible_python_decides() -> None:
    """The expressions, read with Python's own rules, enclose what the filter means."""
    rng = random.Random(4)
    items = [random_item(rng, number) for number in range(40)]
    described = [(item, describe(item)) for item in items]
    undecided = 0
    for _ in range(300):
        text = random_filter(rng)
        node = parse(text)
        surely, maybe, other = (_code(side(node)) for side in (express_certain, express_possible, express_complement))
        for item, facts in described:
            holds = matches(node, item)
            assert evaluated(surely, facts) <= holds <= evaluated(maybe, facts), (text, item)
            assert evaluated(other, facts) != evaluated(surely, facts), (text, item)
            undecided += evaluated(surely, facts) != evaluated(maybe, facts)
    assert 0 < undecided < 0.3 * 300 * 40


class Ranges(dict[str, Any]):
    """As Milvus compares: a value that is not there fails every test."""

    def __missing__(self, key: str) -> Any:
        return Missing()


class Missing:
    def __lt__(self, other: object) -> bool:
        return False

    __le__ = __gt__ = __ge__ = __lt__


def _code(expression: str | bool) -> Any:
    return compile(str(expression), "expression", "eval")


def evaluated(code: Any, described: tuple[list[int], dict[str, Any]]) -> bool:
    facts, ranges = described
    names = {
        "facts": facts,
        "ranges": Ranges(ranges),
        "array_contains": lambda held, one: one in held,
        "array_contains_any": lambda held, some: bool(set(held) & set(some)),
    }
    return bool(eval(code, names))
