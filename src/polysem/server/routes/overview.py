"""GET /stats, /map and /model: the index as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from polysem._version import __version__
from polysem.server.auth import AuthenticatedRoute, Reading
from polysem.server.errors import ApiError
from polysem.server.executors import ReportShare
from polysem.server.routes.schemas import ERRORS, MapAnswer, ModelAnswer, ModelInfo, StatsAnswer
from polysem.server.routes.shared import BASE, Shared, without_paths
from polysem.server.state import State

if TYPE_CHECKING:
    from polysem.search import Index
    from polysem.search.store import IndexedItem, Side

FILTER_SAMPLE = 20_000
"""Items whose labels and metadata are counted; of more, a random sample."""
LABELS, VALUES, NAMES = 50, 30, 20
SAMPLE = 1000
"""Items of each side on which sets and slots are measured."""
_LONG = 60
"""Characters of a metadata value beyond which it is prose, and not offered as a choice."""


def index_version(index: Index) -> Hashable:
    """Changes with the index: what was computed for another version is out of date."""
    found = index.stats()
    return tuple(sorted(found.by_side.items())), found.dead, found.segments, found.change


def count_filter_values(index: Index) -> dict[str, dict[str, Any]]:
    """Of each side, labels and metadata of its items, and how many have each."""
    sides = index.stats().by_side
    return {side: _count_values(index.sample(side, FILTER_SAMPLE), count) for side, count in sides.items()}  # type: ignore[arg-type]


def _count_values(items: Sequence[IndexedItem], total: int) -> dict[str, Any]:
    labels: Counter[str] = Counter()
    values: dict[str, Counter[tuple[bool, Any]]] = {}
    for item in items:
        labels.update(set(item.labels))
        for name, value in item.metadata.items():
            if isinstance(value, str | int | float) and name != "item":
                values.setdefault(name, Counter())[isinstance(value, bool), value] += 1  # True and 1 are two things
    described = [
        _describe_values(name, counts) for name, counts in sorted(values.items(), key=lambda pair: -pair[1].total())
    ]
    return {
        "labels": labels.most_common(LABELS),
        "metadata": [each for each in described if each is not None][:NAMES],
        "of": len(items),
        "sampled": len(items) < total,
    }


def _describe_values(name: str, counts: Counter[tuple[bool, Any]]) -> dict[str, Any] | None:
    numbers = [value for boolean, value in counts if not boolean and not isinstance(value, str)]
    if len(numbers) == len(counts):
        return {"name": name, "kind": "number", "min": min(numbers), "max": max(numbers)}
    # Values as they are, for filters keep true, 1 and '1' apart.
    chosen = [(value, count) for (_, value), count in counts.most_common() if len(str(value)) <= _LONG]
    if not chosen or (len(chosen) > VALUES and chosen[0][1] == 1):  # as good as an id
        return None
    return {"name": name, "kind": "choice", "values": chosen[:VALUES]}


def build_map(index: Index, method: str, limit: int, report: ReportShare) -> bytes:
    """The map, elements of images and texts in the plane, as the JSON of a `MapAnswer`: thousands of points are written
    out once, not for every reader."""
    from polysem.inspection.map import MapPoints, lay_out

    sides = []
    for side, count in index.stats().by_side.items():
        items = _sample_items(index, side, min(count, limit))  # type: ignore[arg-type]
        if items:
            sides.append(
                MapPoints(
                    index.vectors(side, [item.id for item in items]).astype("float32"),  # type: ignore[arg-type]
                    side,  # type: ignore[arg-type]
                    [item.id for item in items],
                    [item.caption or item.id for item in items],
                    [item.labels for item in items],
                    [str(item.metadata.get("item", item.id)) for item in items],
                )
            )
    if not sides:
        return _map_json([], 0, [], ["The index is empty."])
    found = lay_out(
        sides,
        method=method,  # type: ignore[arg-type]
        limit=max(2, limit),
        progress=lambda _, done, of: report(done / max(of, 1)),
    )
    points = [
        {
            "x": round(float(x), 4),
            "y": round(float(y), 4),
            "side": found.items[item].side,
            "slot": slot,
            "id": found.items[item].id,
            "label": found.items[item].label,
            "caption": found.items[item].text[:200],
        }
        for item, slot, (x, y) in zip(found.item.tolist(), found.slot.tolist(), found.positions.tolist(), strict=True)
    ]
    notes = [*found.notes, *([] if found.labels else ["These items have no labels to colour by."])]
    return _map_json(points, found.slots, list(found.labels), notes)


def _map_json(points: list[Any], slots: int, labels: list[str], notes: Sequence[str]) -> bytes:
    made = MapAnswer(ready=True, progress=1.0, points=points, slots=slots, labels=labels, note=" ".join(notes))
    return made.model_dump_json().encode()


def _sample_items(index: Index, side: Side, count: int) -> list[IndexedItem]:
    return [item for item in index.sample(side, count) if item.position >= 0] if count else []


def measure_sets(index: Index) -> dict[str, Any]:
    """How diverse the sets are and which slots do the work, on a sample of the index."""
    import numpy as np
    import torch

    from polysem.inspection.diagnose.sets import measure_spread, measure_usage

    sets: dict[str, Any] = {"image": None, "text": None}
    counts = {"image": 0, "text": 0, "pairs": 0}
    known = index.stats().by_side
    sampled: dict[str, Sequence[IndexedItem]] = {
        side: _sample_items(index, side, SAMPLE)  # type: ignore[arg-type]
        for side in known
        if known[side]
    }
    for side, items in sampled.items():
        counts[side] = len(items)
        if items and index.manifest.sets[side] > 1:
            vectors = torch.from_numpy(index.vectors(side, [item.id for item in items]).astype(np.float32))  # type: ignore[arg-type]
            found = measure_spread(vectors)
            sets[side] = {
                "elements": found.elements,
                "variance": found.variance,
                "log_variance": found.log_variance,
                "within": found.within,
            }
    slots: dict[str, Any] = {"image": None, "text": None}
    texts = [item for item in sampled.get("text", ()) if isinstance(item.metadata.get("item"), str)]
    owners = list(dict.fromkeys(str(item.metadata["item"]) for item in texts))
    there = {item.id for item in index.items(owners, "image") if item.position >= 0} if owners else set()
    texts = [item for item in texts if item.metadata["item"] in there]
    if texts and max(index.manifest.sets.values()) > 1:
        images = [owner for owner in owners if owner in there]
        number = {owner: place for place, owner in enumerate(images)}
        counts["pairs"] = len(texts)
        both = measure_usage(
            torch.from_numpy(index.vectors("image", images).astype(np.float32)),
            torch.from_numpy(index.vectors("text", [item.id for item in texts]).astype(np.float32)),
            np.array([number[item.metadata["item"]] for item in texts]),
            index.model.similarity,
        )
        slots = {
            side: {"supervision": list(own.supervision), "wins": list(own.wins), "effective": own.effective}
            for side, own in zip(("image", "text"), both, strict=True)
        }
    return {"sets": sets, "slots": slots, "sample": counts}


router = APIRouter(
    prefix=BASE, route_class=AuthenticatedRoute, tags=["inspection"], dependencies=[Reading], responses=ERRORS
)


@router.get("/stats", response_model=StatsAnswer)
async def stats(state: Shared) -> StatsAnswer:
    """How large the index is, what made it, and what one can filter by."""
    found = await state.workers.run(state.index.stats)
    filters = await _computed_once(state, "filters", count_filter_values)
    needed: Literal["none", "writes", "all"] = (
        "all" if state.settings.reads_need_token else "writes" if state.writable else "none"
    )
    return StatsAnswer(
        items=found.by_side,
        model=_model(state),
        audit=found.audit,
        audit_outdated=found.changed_since_audit,
        modes=list(found.modes),
        writable=state.writable,
        token=needed,
        filters=filters,
        bytes=found.bytes,
        credits=list(found.credits),
        version=__version__,
    )


@router.get("/map", response_model=MapAnswer)
async def joint_map(
    state: Shared,
    colour: Annotated[Literal["slot", "label"], Query(description="Points carry both.")] = "slot",  # noqa: ARG001
    method: Annotated[Literal["pca", "tsne"], Query()] = "tsne",
    limit: Annotated[int, Query(ge=2, le=20_000, description="Elements to show at most.")] = 5000,
) -> MapAnswer | Response:
    """Every element of every set in the plane. Made in the background: ask again until it is ready."""
    state.check_ready()
    index = state.index
    version = await state.workers.run(index_version, index)
    job = state.jobs.get(("map", method, limit), partial(build_map, index, method, limit), version)
    if job.error is not None:
        raise ApiError(500, "The map could not be made. The server's log says why.")
    if job.ready:
        return Response(job.result, media_type="application/json")
    note = "The map is being made."
    return MapAnswer(ready=False, progress=job.progress, points=[], slots=0, labels=[], note=note)


@router.get("/model", response_model=ModelAnswer)
async def model(state: Shared) -> ModelAnswer:
    """How diverse its sets are, which slots do the work, and what was measured of it."""
    info = _model(state)
    measured = await _computed_once(state, "measured", measure_sets)
    found = await state.workers.run(state.index.stats)
    return ModelAnswer(
        **measured,
        figures=info.provenance.get("validation") or {},
        data=info.provenance.get("data") or {},
        model=info,
        items=found.by_side,
        bytes=found.bytes,
        audit=found.audit,
        audit_outdated=found.changed_since_audit,
    )


async def _computed_once(state: State, name: str, work: Any) -> Any:
    """What was computed for this version of the index, or is now."""
    key = (name, await state.workers.run(index_version, state.index))
    async with state.computing[name]:  # a second request waits for what the first one computes
        result = state.computed.get(key)
        if result is None:
            result = state.computed[key] = await state.workers.run(work, state.index)
    return result


def _model(state: State) -> ModelInfo:
    manifest = state.index.manifest
    return ModelInfo(
        name=Path(manifest.model).name or "unnamed",
        fingerprint=manifest.fingerprint,
        sets=dict(manifest.sets),
        dim=manifest.dim,
        similarity=dict(manifest.similarity),
        provenance=without_paths(state.model.provenance),
    )
