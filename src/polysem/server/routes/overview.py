"""The index as a whole: its statistics, its map, and its model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from polysem._version import __version__
from polysem.server import index_overview
from polysem.server.auth import Guarded, Reading
from polysem.server.errors import ApiError
from polysem.server.responses import ERRORS, MapAnswer, ModelAnswer, ModelInfo, Stats
from polysem.server.routes.shared import BASE, Shared, without_paths
from polysem.server.state import State

router = APIRouter(prefix=BASE, route_class=Guarded, tags=["inspection"], dependencies=[Reading], responses=ERRORS)


@router.get("/stats", response_model=Stats)
async def stats(state: Shared) -> Stats:
    """How large the index is, what made it, and what one can filter by."""
    found = await state.workers.run(state.index.stats)
    filters = await _kept(state, "filters", index_overview.filters)
    needed: Literal["none", "writes", "all"] = (
        "all" if state.settings.reads_need_token else "writes" if state.writable else "none"
    )
    return Stats(
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
async def space(
    state: Shared,
    colour: Annotated[Literal["slot", "label"], Query(description="Points carry both.")] = "slot",  # noqa: ARG001
    method: Annotated[Literal["pca", "tsne"], Query()] = "tsne",
    limit: Annotated[int, Query(ge=2, le=20_000, description="Elements to show at most.")] = 5000,
) -> MapAnswer | Response:
    """Every element of every set in the plane. Made in the background: ask again until it is ready."""
    state.check_ready()
    index = state.index
    version = await state.workers.run(index_overview.version, index)
    job = state.jobs.get(("map", method, limit), partial(index_overview.space, index, method, limit), version)
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
    measured = await _kept(state, "measured", index_overview.measured)
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


async def _kept(state: State, name: str, work: Any) -> Any:
    """What was worked out for this version of the index, or is now."""
    key = (name, await state.workers.run(index_overview.version, state.index))
    async with state.working_out[name]:  # who comes second finds what the first has worked out
        found = state.kept.get(key)
        if found is None:
            found = await state.workers.run(work, state.index)
            state.kept.put(key, found)
    return found


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
