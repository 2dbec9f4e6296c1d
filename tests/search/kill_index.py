"""Kills a whole index at random moments, preparations included, and searches what is left. Run by `test_local.py`.

python kill_index.py FOLDER ROUNDS SEED
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from kill_store import die_at_call, killed

from polysem.search import Entry, Index, Manifest, VectorBatch
from polysem.search.engine import SketchPlan, engine
from polysem.search.local import searcher

K, DIM = 2, 16
# Preparations from the first few rows on, so that kills fall into them.
searcher.MIN_SKETCHED, searcher.MIN_ATTACHED = 4, 8
engine.MIN_ITEMS = 1
engine.measure_plan = lambda *_: SketchPlan((8,), 0.5, (0.1,))

State = dict[str, int]


def sets(value: int) -> np.ndarray:
    drawn = np.random.default_rng(value).normal(size=(K, DIM)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)


def frames(value: int) -> np.ndarray | None:
    """Of two in three items, which are videos: the best frame tells the value."""
    if value % 3 == 0:
        return None
    others = np.stack([sets(value + 1 + place) for place in range(4)])
    return np.insert(others, value % 5, sets(value), axis=0)


def operation(rng: random.Random) -> tuple[str, Any]:
    kind = rng.choice(["add", "add", "add", "remove", "compact"])
    some = [f"item {i}" for i in rng.sample(range(60), rng.randint(1, 30))]
    if kind == "add":
        return kind, {key: rng.randint(0, 10**6) for key in some}
    return kind, some[:5] if kind == "remove" else None


def applied(state: State, kind: str, given: Any) -> State:
    if kind == "add":
        return {**state, **given}
    return {key: value for key, value in state.items() if kind != "remove" or key not in given}


def perform(index: Index, kind: str, given: Any) -> None:
    if kind == "add":
        entries = [Entry(key, labels=["l"]) for key in given]
        own = [frames(value) for value in given.values()]
        index.add(VectorBatch("image", entries, np.stack([sets(value) for value in given.values()]), frames=own))
    elif kind == "remove":
        index.remove(given)
    else:
        index.compact()


def work(folder: Path, seed: int, tell: int) -> None:
    rng = random.Random(seed)
    with Index.open(folder, write=True) as index:
        die_at_call(rng.randint(1, 6000))
        while True:
            kind, given = operation(rng)
            os.write(tell, json.dumps([kind, given]).encode() + b"\n")
            perform(index, kind, given)
            os.write(tell, b"done\n")


def found(index: Index, allowed: list[State]) -> State:
    """What the index holds, after searching it both ways for each thing it should hold."""
    verified = index.verify(sample=3)
    assert list(verified.damage) == [], verified.damage
    held = {item.id for item in index.items(f"item {i}" for i in range(60))}
    state = next((each for each in allowed if set(each) == held), None)
    assert state is not None, (held, allowed)
    for key, value in state.items():
        for mode in ("exact", "fast"):
            best = index.search(vectors=sets(value), k=1, mode=mode)
            assert best.ids == [key], (key, mode, best)
            moment = best[0].moment
            assert (value % 5 if value % 3 else None) == (moment and moment.frame), (key, value, moment)
    assert set(index.search(vectors=sets(0), k=99, where="label = 'l'").ids) == held
    return state


def main() -> None:
    folder, rounds, rng = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    manifest = Manifest("abc", {"image": K, "text": K}, DIM, {"name": "smooth_chamfer"})
    Index.create(folder, manifest).close()
    state: State = {}
    interrupted: Counter[str] = Counter()
    for _ in range(rounds):
        seed = rng.randrange(2**32)
        told, pause = rng.randint(1, 30), rng.uniform(0, 0.05)
        lines = killed(lambda tell, seed=seed: work(folder, seed, tell), told, pause)
        assert not lines or not lines[-1].startswith("failed"), lines[-1]
        pending = None
        for line in lines:
            if line == "done":
                state, pending = applied(state, *pending), None
            else:
                pending = json.loads(line)
        allowed = [state] if pending is None else [state, applied(state, *pending)]
        # An id whose value changed is told apart by what is found for it.
        with Index.open(folder, write=True) as index:
            try:
                state = found(index, allowed)
            except AssertionError:
                state = found(index, allowed[::-1])
        interrupted[pending[0] if pending else "nothing"] += 1
    sys.stdout.write(json.dumps(interrupted) + "\n")


if __name__ == "__main__":
    main()
