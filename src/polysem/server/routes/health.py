"""GET /healthz and /metrics: whether the server is up, and what it counts."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from polysem.server.auth import Reading
from polysem.server.metrics import CONTENT_TYPE
from polysem.server.routes.schemas import ERRORS, HealthAnswer, binary_response
from polysem.server.routes.shared import Shared

router = APIRouter(tags=["health"])
_NARROW: dict[int | str, dict[str, Any]] = {status: ERRORS[status] for status in (400, 403, 408, 413, 500, 504)}


@router.get(
    "/healthz",
    response_model=HealthAnswer,
    responses={**_NARROW, 503: {"model": HealthAnswer, "description": "Not ready."}},
)
async def health(state: Shared, response: Response) -> HealthAnswer:
    """Whether the model is loaded: 200 when ready, 503 before and after."""
    response.status_code = 200 if state.phase == "ready" else 503
    return HealthAnswer(status=state.phase)


@router.get(
    "/metrics",
    dependencies=[Reading],
    response_class=Response,
    responses={**ERRORS, **binary_response("text/plain", "Prometheus text.")},
)
async def metrics(state: Shared) -> Response:
    """Counters and times for Prometheus."""
    return Response(state.metrics.text(), media_type=CONTENT_TYPE)
