"""Whether the server is up, and what it counts."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from polysem.server.auth import Reading
from polysem.server.metrics import CONTENT_TYPE, resident_bytes
from polysem.server.responses import ERRORS, Health, of_kind
from polysem.server.routes.shared import Shared

router = APIRouter(tags=["health"])
_NARROW: dict[int | str, dict[str, Any]] = {status: ERRORS[status] for status in (400, 403, 408, 413, 500, 504)}


@router.get(
    "/healthz",
    response_model=Health,
    responses={**_NARROW, 503: {"model": Health, "description": "Not ready."}},
)
async def health(state: Shared, response: Response) -> Health:
    """Whether the model is loaded: 200 when ready, 503 before and after."""
    response.status_code = 200 if state.phase == "ready" else 503
    return Health(status=state.phase)


@router.get(
    "/metrics",
    dependencies=[Reading],
    response_class=Response,
    responses={**ERRORS, **of_kind("text/plain", "Prometheus text.")},
)
async def metrics(state: Shared) -> Response:
    """Counters and times for Prometheus."""
    encoding = state.loaded
    gauges = {
        "polysem_ready": ("1 when the model is loaded.", float(state.phase == "ready")),
        "polysem_requests_under_way": ("Requests being answered.", state.metrics.under_way),
        "polysem_work_under_way": ("Searches and pictures that have a thread or wait for one.", state.workers.busy),
        "polysem_uploads_kept": ("Uploaded pictures that can be searched with.", len(state.uploads)),
        "polysem_resident_bytes": ("Memory of the process.", resident_bytes()),
    }
    counters: dict[str, tuple[str, float]] = {
        "polysem_work_refused_total": ("Work turned away because too much was waiting.", state.workers.refused)
    }
    if encoding is not None:
        for name, batcher in (("texts", encoding.texts), ("images", encoding.images)):
            counters[f"polysem_encoded_{name}_total"] = (f"Queries encoded, {name}.", batcher.items)
            counters[f"polysem_encoded_{name}_batches_total"] = (f"Batches they came in, {name}.", batcher.batches)
        counters["polysem_cache_hits_total"] = ("Queries whose embedding was kept.", encoding.cache.hits)
        counters["polysem_cache_misses_total"] = ("Queries that had to be encoded.", encoding.cache.misses)
    return Response(state.metrics.text(gauges, counters), media_type=CONTENT_TYPE)
