"""The application: routes, and around them the layers that every request passes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig

from polysem._version import __version__
from polysem.server import errors
from polysem.server.auth import Gate
from polysem.server.headers import SecurityHeaders
from polysem.server.heads import Heads
from polysem.server.host_check import OwnOrigin
from polysem.server.limits import BodyLimit, Deadline, InFlight
from polysem.server.metrics import Metrics
from polysem.server.rates import RateLimit
from polysem.server.request_metrics import Observed
from polysem.server.routes import explain, health, items, overview, pages, search, session, uploads, videos
from polysem.server.routes.addresses import EncodedIds
from polysem.server.settings import Settings
from polysem.server.state import State

if TYPE_CHECKING:
    from polysem.models import Model

_ABOUT = """Search an index of images and texts, see why something was found, and change the index.

Errors are `{"error": {"code", "message"}}`. On loopback, reading needs no token; elsewhere everything needs
`Authorization: Bearer TOKEN`, and so does writing everywhere."""

# FastAPI would hand requests and stack traces to whatever OpenTelemetry finds configured in the environment.
_SILENT: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}


def create_app(
    place: str | Path,
    settings: Settings | None = None,
    *,
    model: Model | str | Path | None = None,
    failed: Callable[[Exception], None] | None = None,
) -> FastAPI:
    """An ASGI application that serves an index. failed: told if the index or its model cannot be loaded."""
    settings = settings or Settings()
    metrics = Metrics()
    state = State(str(place), settings, metrics, model)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        state.start(failed)
        yield
        await state.stop()

    app = FastAPI(
        title="polysem",
        version=__version__,
        description=_ABOUT,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
        telemetry=_SILENT,
    )
    app.state.polysem, app.state.gate = state, Gate(settings)
    for routes in (health, search, uploads, explain, overview, videos, items, session):
        app.include_router(routes.router)
    pages.install(app)
    errors.install(app)
    _complete(app)
    # From the inside out: the last one added is the first to see a request.
    app.add_middleware(EncodedIds)
    app.add_middleware(Heads)
    app.add_middleware(BodyLimit, limits=settings.limits)
    app.add_middleware(Deadline, seconds=settings.limits.request_seconds, metrics=metrics)
    app.add_middleware(InFlight, most=settings.limits.requests, metrics=metrics)
    app.add_middleware(RateLimit, rate=settings.rate, burst_seconds=settings.limits.burst_seconds, metrics=metrics)
    app.add_middleware(OwnOrigin, settings=settings)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(Observed, metrics=metrics)
    return app


def _complete(app: FastAPI) -> None:
    """What is wrong with a request is told as a 400 here, not as FastAPI's 422."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = make()
            for path in document["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            for name in ("HTTPValidationError", "ValidationError"):
                document["components"]["schemas"].pop(name, None)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
