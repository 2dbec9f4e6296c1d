"""GET /stats, /map and /model: the index as a whole."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable
from functools import partial
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from polysem._version import __version__
from polysem.server.auth import AuthenticatedRoute, Reading
from polysem.server.errors import ApiError
from polysem.server.executors import ReportShare
from polysem.server.routes.schemas import ERRORS, MapAnswer, ModelAnswer, ModelInfo, StatsAnswer
from polysem.server.settings import BASE
from polysem.server.state import ServerState, State

if TYPE_CHECKING:
    from polysem.search import Index, IndexStats

FILTER_SAMPLE = 20_000
"""Items whose labels and metadata are counted; of more, a random sample."""
LABELS, VALUES, NAMES = 50, 30, 20
SAMPLE = 1000
"""Items of each side on which sets and slots are measured."""
_LONG = 60
"""Characters of a metadata value beyond which it is prose, and not offered as a choice."""


def read_version(index: Index) -> Hashable:
    """Changes with the index: what was computed for another version is out of date."""
    found = index.stats()
    return tuple(sorted(found.by_side.items())), found.dead, found.segments, found.change


def count_filter_values(index: Index) -> dict[str, dict[str, Any]]:
    """Of each side, labels and metadata of its items, and how many have each."""
    counts = {}
    for side, total in index.stats().by_side.items():
        items = index.sample(side, FILTER_SAMPLE)  # type: ignore[arg-type]
        labels = Counter(label for item in items for label in set(item.labels))
        values: dict[str, Counter[tuple[bool, Any]]] = defaultdict(Counter)
        for name, value in (pair for item in items for pair in item.metadata.items()):
            if isinstance(value, str | int | float) and name != "item":
                values[name][isinstance(value, bool), value] += 1  # True and 1 are two things
        by_count = sorted(values.items(), key=lambda pair: -pair[1].total())
        described = [each for name, own in by_count if (each := _describe_values(name, own)) is not None]
        counts[side] = {
            "labels": labels.most_common(LABELS),
            "metadata": described[:NAMES],
            "of": len(items),
            "sampled": len(items) < total,
        }
    return counts


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
    from polysem.inspection.map import lay_out, make_index_points

    sides = make_index_points(index, limit)
    if not sides:
        return MapAnswer(ready=True, progress=1.0, note="The index is empty.").model_dump_json().encode()
    made = lay_out(
        sides,
        method=method,  # type: ignore[arg-type]
        limit=max(2, limit),
        progress=lambda _, done, of: report(done / max(of, 1)),
    )
    points = [
        {
            "x": round(x, 4),
            "y": round(y, 4),
            "side": made.items[item].side,
            "slot": slot,
            "id": made.items[item].id,
            "label": made.items[item].label,
            "caption": made.items[item].text[:200],
        }
        for item, slot, (x, y) in zip(made.item.tolist(), made.slot.tolist(), made.positions.tolist(), strict=True)
    ]
    notes = [*made.notes, *([] if made.labels else ["These items have no labels to colour by."])]
    fields = {"points": points, "slots": made.slots, "labels": list(made.labels), "note": " ".join(notes)}
    return MapAnswer.model_validate({"ready": True, "progress": 1.0, **fields}).model_dump_json().encode()


def measure_sets(index: Index) -> dict[str, Any]:
    """How diverse the sets are and which slots do the work, on a sample of the index."""
    import numpy as np
    import torch

    from polysem.inspection.diagnose.geometry import measure_spread, measure_usage

    def read(side: str, ids: list[str]) -> torch.Tensor:
        return torch.from_numpy(index.vectors(side, ids).astype(np.float32))  # type: ignore[arg-type]

    sets: dict[str, Any] = {"image": None, "text": None}
    slots: dict[str, Any] = {"image": None, "text": None}
    sampled = {side: index.sample(side, SAMPLE) for side in index.stats().by_side}  # type: ignore[arg-type]
    for side, items in sampled.items():
        if items and index.manifest.sets[side] > 1:
            spread = vars(measure_spread(read(side, [item.id for item in items])))
            sets[side] = {name: spread[name] for name in ("elements", "variance", "log_variance", "within")}
    texts = [item for item in sampled.get("text", ()) if isinstance(item.metadata.get("item"), str)]
    owners = list(dict.fromkeys(item.metadata["item"] for item in texts))
    in_milvus = index.stats().bytes is None  # where positions are always -1; in a folder that is a damaged item
    owned = {item.id for item in index.items(owners, "image") if item.position >= 0 or in_milvus}
    pairs = [item for item in texts if item.metadata["item"] in owned]
    if pairs and max(index.manifest.sets.values()) > 1:
        images = [owner for owner in owners if owner in owned]
        both = measure_usage(
            read("image", images),
            read("text", [item.id for item in pairs]),
            np.array([images.index(item.metadata["item"]) for item in pairs]),
            index.model.similarity,
        )
        slots = {
            side: {"supervision": list(own.supervision), "wins": list(own.wins), "effective": own.effective}
            for side, own in zip(("image", "text"), both, strict=True)
        }
    counts = {side: len(sampled.get(side, ())) for side in ("image", "text")}
    return {"sets": sets, "slots": slots, "sample": {**counts, "pairs": len(pairs) if slots["image"] else 0}}


router = APIRouter(
    prefix=BASE, route_class=AuthenticatedRoute, tags=["inspection"], dependencies=[Reading], responses=ERRORS
)


@router.get("/stats", response_model=StatsAnswer)
async def stats(state: ServerState) -> StatsAnswer:
    """How large the index is, what made it, and what one can filter by."""
    info, found = await _describe_index(state)
    return StatsAnswer(
        **info,
        modes=list(found.modes),
        writable=state.writable,
        token="all" if state.settings.reads_need_token else "writes" if state.writable else "none",
        filters=await _compute_once(state, "filters", count_filter_values),
        credits=list(found.credits),
        version=__version__,
    )


@router.get("/map", response_model=MapAnswer)
async def joint_map(
    state: ServerState,
    colour: Annotated[Literal["slot", "label"], Query(description="Points carry both.")] = "slot",  # noqa: ARG001
    method: Annotated[Literal["pca", "tsne"], Query()] = "tsne",
    limit: Annotated[int, Query(ge=2, le=20_000, description="Elements to show at most.")] = 5000,
) -> MapAnswer | Response:
    """Every element of every set in the plane. Made in the background: ask again until it is ready."""
    version = await state.workers.run(read_version, state.index)
    job = state.jobs.get(("map", method, limit), partial(build_map, state.index, method, limit), version)
    if job.error is not None:
        raise ApiError(500, "The map could not be made. The server's log says why.")
    if job.ready:
        return Response(job.result, media_type="application/json")
    return MapAnswer(ready=False, progress=job.progress, note="The map is being made.")


@router.get("/model", response_model=ModelAnswer)
async def model(state: ServerState) -> ModelAnswer:
    """How diverse its sets are, which slots do the work, and what was measured of it."""
    info, _ = await _describe_index(state)
    provenance, measured = info["model"].provenance, await _compute_once(state, "measured", measure_sets)
    return ModelAnswer(
        **info, **measured, figures=provenance.get("validation") or {}, data=provenance.get("data") or {}
    )


async def _compute_once(state: State, name: str, work: Any) -> Any:
    """What was computed for this version of the index, or is now."""
    key = (name, await state.workers.run(read_version, state.index))
    async with state.computing[name]:  # a second request waits for what the first one computes
        result = state.computed.get(key)
        if result is None:
            result = state.computed[key] = await state.workers.run(work, state.index)
    return result


async def _describe_index(state: State) -> tuple[dict[str, Any], IndexStats]:
    """The fields of an `IndexInfo`, and the statistics they are from."""
    manifest, found = state.index.manifest, await state.workers.run(state.index.stats)
    model = ModelInfo(
        name=Path(manifest.model).name or "unnamed",
        fingerprint=manifest.fingerprint,
        sets=dict(manifest.sets),
        dim=manifest.dim,
        similarity=dict(manifest.similarity),
        provenance=strip_paths(state.encoding.model.provenance),
    )
    audit = {"audit": found.audit, "audit_outdated": found.changed_since_audit}
    return {"items": found.by_side, "bytes": found.bytes, "model": model, **audit}, found


def strip_paths(value: Any) -> Any:
    """The same with every absolute path cut to its last part: readers of a model page need not know the disk."""
    if isinstance(value, dict):
        return {key: strip_paths(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [strip_paths(inner) for inner in value]
    if isinstance(value, str) and len(value) < 4096:
        for kind in (PurePosixPath, PureWindowsPath):
            path: PurePath = kind(value)
            if path.is_absolute():
                return path.name
    return value
