"""Kills a writer again and again and compares what is left with what was acknowledged. Run by `test_faults.py`.

    python kill_store.py FOLDER ROUNDS SEED    at random moments of random work; prints, as JSON, what was interrupted
    python kill_store.py FOLDER steps          at every step of one add, remove and compact

This process forks the writers, so that a kill costs milliseconds, and checks the folder after each.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import select
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from small_indexes import batch, manifest

from polysem.search.store import SearchError, Store, schema

State = dict[str, float]
LONG = 120.0
"""Seconds of silence after which a process hangs."""
STEPS = ("open", "write", "fsync", "replace", "unlink", "execute", "executemany", "close")
IDS = [f"item {i}" for i in range(12)]


def operation(rng: random.Random) -> tuple[str, Any]:
    kind = rng.choice(["add", "add", "remove", "remove", "compact"])
    some = rng.sample(IDS, rng.randint(1, 6))
    if kind == "add":
        return kind, {key: rng.randint(0, 999) for key in some}
    return kind, some if kind == "remove" else None


def applied(state: State, kind: str, given: Any) -> State:
    if kind == "add":
        return {**state, **given}
    return {key: value for key, value in state.items() if kind != "remove" or key not in given}


def write_until_killed(folder: Path, seed: int, tell: int) -> None:
    """Work on the index and say, before and after each operation, what it is."""
    rng = random.Random(seed)
    by_call = rng.random() < 0.7
    if by_call and rng.random() < 0.2:
        die_at_call(rng.randint(1, 150))  # while it opens
    with Store.open(folder, write=True) as store:
        if by_call:
            die_at_call(rng.randint(1, 900))
        while True:
            kind, given = operation(rng)
            os.write(tell, json.dumps([kind, given]).encode() + b"\n")
            perform(store, kind, given)
            os.write(tell, b"done\n")


def perform(store: Store, kind: str, given: Any) -> None:
    if kind == "add":
        store.add(batch(given, caption="a caption of words", labels=["l", "m", "l"]), batch(given, "text"))
    elif kind == "remove":
        store.remove(given)
    else:
        store.compact()


def die_at_call(count: int) -> None:
    """Have this process killed as it enters or leaves some function written in C."""
    _die_at(count, lambda event, function: event.startswith("c_"))


def die_after_step(count: int) -> None:
    """Have this process killed after its `count`-th step that touches the disk."""
    _die_at(count, lambda event, function: event == "c_return" and function.__name__ in STEPS)


def _die_at(count: int, counts: Callable[[str, Any], bool]) -> None:
    left = count

    def hook(frame: object, event: str, function: Any) -> None:
        nonlocal left
        left -= counts(event, function)
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(hook)


def killed(work: Any, told: int | None = None, pause: float = 0.0) -> list[str]:
    """Run `work(tell)` in a process of its own until it ends, or kill it; return the lines it told.

    told: kill it, wherever it is by then, once it has told this many lines and `pause` seconds have gone by.
    """
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(hear)
            work(tell)
        except BaseException as error:
            os.write(tell, f"failed: {error!r}\n".encode())
        finally:
            os._exit(0)
    os.close(tell)
    heard, hangs = b"", False
    while told is None or heard.count(b"\n") < told:
        hangs = not select.select([hear], [], [], LONG)[0]
        part = b"" if hangs else os.read(hear, 2**16)
        heard += part
        if not part:
            break
    else:
        time.sleep(pause)
    os.kill(child, signal.SIGKILL)  # it is there, or a zombie that does not mind
    os.waitpid(child, 0)
    with os.fdopen(hear, "rb") as rest:
        heard += rest.read()
    assert not hangs, heard
    return heard.decode().splitlines()


def contents(store: Store) -> State:
    """What the index holds, after every check of its own."""
    snapshot = store.snapshot()
    assert snapshot.damaged == [], snapshot.damaged
    assert store.snapshot().verify() == []
    found: dict[str, State] = {}
    for side in ("image", "text"):
        items = list(snapshot.iterate_items(side))
        vectors = snapshot.vectors(side, [item.position for item in items])
        assert all((each == each.flat[0]).all() for each in vectors)
        assert snapshot.mask(side).sum() == len(items)
        found[side] = {item.id: float(each.flat[0]) - 1 for item, each in zip(items, vectors, strict=True)}
    assert found["image"] == found["text"], "half of an operation"
    assert {item.id for item in snapshot.search_words("caption", "image", 99)} == set(found["image"])
    assert set(np.flatnonzero(snapshot.mask("image", "label = 'l'"))) == set(np.flatnonzero(snapshot.mask("image")))
    assert snapshot.stats().items == 2 * len(found["image"])
    return found["image"]


def files_are_those_of_the_database(store: Store) -> None:
    named = {view.segment.path.name for side in ("image", "text") for view in store.snapshot().views(side)}
    assert {path.name for path in store.folder.glob("*segment*")} == named
    database = schema.connect(store.folder / schema.NAME, "rw")
    query = "SELECT count(*) FROM labels WHERE item NOT IN (SELECT key FROM items)"
    assert database.execute(query).fetchone() == (0,)
    database.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
    database.close()


def interrupted_work(folder: Path, rounds: int, rng: random.Random) -> dict[str, Any]:
    Store.create(folder, manifest()).close()
    state: State = {}
    interrupted: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    acknowledged = 0
    for _ in range(rounds):
        seed = rng.randrange(2**32)
        told, pause = rng.randint(1, 30), rng.uniform(0, 0.02)
        lines = killed(lambda tell, seed=seed: write_until_killed(folder, seed, tell), told, pause)
        assert not lines or not lines[-1].startswith("failed"), lines[-1]
        pending: tuple[str, Any] | None = None
        for line in lines:
            if line == "done":
                assert pending is not None
                state, pending = applied(state, *pending), None
                acknowledged += 1
            else:
                pending = tuple(json.loads(line))
        allowed = [state] if pending is None else [state, applied(state, *pending)]
        if rng.random() < 0.5:  # a reader may be the first to find what is left
            with Store.open(folder) as reader:
                assert contents(reader) in allowed
        with Store.open(folder, write=True) as store:
            found = contents(store)
            assert found in allowed, (found, allowed, pending)
            files_are_those_of_the_database(store)
        interrupted[pending[0] if pending else "nothing"] += 1
        kept[pending[0] if pending else "nothing"] += pending is not None and found == allowed[-1] != state
        state = found
    return {"acknowledged": acknowledged, "interrupted": interrupted, "kept": kept}


def interrupted_steps(folder: Path, kind: str, given: Any) -> dict[str, int]:
    """Kill one operation at each of its steps in turn, always from the same beginning."""
    found = {"undone": 0, "done": 0}
    start = folder / "start"
    with Store.create(start, manifest()) as store:
        for i in range(3):
            perform(store, "add", dict.fromkeys(IDS[i : i + 5], i))
        before = contents(store)
    for step in itertools.count(1):
        shutil.copytree(start, folder / "index")

        def work(tell: int, step: int = step) -> None:
            with Store.open(folder / "index", write=True) as store:
                die_after_step(step)
                perform(store, kind, given)
                sys.setprofile(None)
                os.write(tell, b"done")

        finished = killed(work) == ["done"]
        with Store.open(folder / "index", write=True) as store:
            after = contents(store)
            files_are_those_of_the_database(store)
            assert after in (before, applied(before, kind, given))
            # Nothing that counts changes in a compaction; that it is done shows in what no longer counts.
            done = after != before if kind != "compact" else store.snapshot().stats().dead == 0
        shutil.rmtree(folder / "index")
        if finished:
            assert done
            return found
        found["done" if done else "undone"] += 1
    raise AssertionError


def interrupted_creation(folder: Path, rounds: int, rng: random.Random) -> dict[str, int]:
    found: Counter[str] = Counter()
    for number in range(rounds):
        target, count = folder / str(number), rng.randint(1, 40)

        def create(tell: int, target: Path = target, count: int = count) -> None:
            die_after_step(count)
            Store.create(target, manifest()).close()

        killed(create)
        try:
            Store.open(target, write=True).close()
            found["made"] += 1
        except SearchError as error:
            if "holds no index" not in str(error):
                raise
            Store.create(target, manifest()).close()
            found["made again"] += 1
        with Store.open(target, write=True) as store:
            store.add(batch({"a": 1}, caption="a caption", labels=["l"]), batch({"a": 1}, "text"))
            assert contents(store) == {"a": 1}
    return found


if __name__ == "__main__":
    where = Path(sys.argv[1])
    if sys.argv[2] == "steps":
        one_of_each = {"add": dict.fromkeys(IDS[3:9], 50), "remove": IDS[2:6], "compact": None}
        report: dict[str, Any] = {
            kind: interrupted_steps(where / kind, kind, given) for kind, given in one_of_each.items()
        }
    else:
        source = random.Random(int(sys.argv[3]))
        report = interrupted_work(where / "index", int(sys.argv[2]), source)
        report["creation"] = interrupted_creation(where / "made", 10, source)
    sys.stdout.write(json.dumps(report) + "\n")
