"""What makes searching fast, worked out once for each large segment and kept beside it: sketches and means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from polysem.search.engine import Engine
from polysem.search.local.candidates import Means
from polysem.search.local.segment_searcher import ENGINE, MEANS, Part, missing
from polysem.search.store import Side, Snapshot, Store
from polysem.search.store.entries import SIDES

Progress = Callable[[str, int, int], None]
_ASKED = 8
"""Sets of the other side that an engine is measured with."""


def settle(store: Store, progress: Progress | None) -> list[int]:
    """Make what is missing; the numbers of the segments that have more than before."""
    compared = store.manifest.similarity
    with store.reading() as snapshot:
        views = [view for side in SIDES for view in snapshot.views(side)]
        todo = [(view, names) for view in views if (names := missing(view, compared))]
        for done, (view, names) in enumerate(todo):
            if progress is not None:
                progress("preparing", done, len(todo))
            if ENGINE in names:
                example = _example(snapshot, view.side, view.rows, compared)
                asked = _others(snapshot, view.side)
                engine = Engine.build(view.vectors, compared, like=example, asked=asked)
                store.attach(view.number, ENGINE, *engine.state())
            if MEANS in names:
                store.attach(view.number, MEANS, *Means.build(view.vectors).state())
    if todo:
        # A commit, so that readers in other processes look again.
        store.note("settled", max(view.number for view, _ in todo))
    return [view.number for view, _ in todo]


def _others(snapshot: Snapshot, side: Side) -> NDArray[Any] | None:
    """A few sets of the other side: what this side will mostly be searched with."""
    other = next(each for each in SIDES if each != side)
    views = [view for view in snapshot.views(other) if view.rows]
    return views[0].vectors[:: max(1, views[0].rows // _ASKED)][:_ASKED] if views else None


def _example(snapshot: Snapshot, side: Side, rows: int, compared: Mapping[str, Any]) -> Engine | None:
    """An engine that was measured on at least a quarter as many items of the same side."""
    for view in snapshot.views(side):
        if 4 * view.rows >= rows and not missing(view, compared):
            engine = Part(view, compared).engine
            if engine is not None and engine.plan.kept:
                return engine
    return None
