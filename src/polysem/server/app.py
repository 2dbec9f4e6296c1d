"""The ASGI application: routes, and the middleware around them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig

from polysem._version import __version__
from polysem.server import errors
from polysem.server.auth import TokenAuth
from polysem.server.metrics import Metrics
from polysem.server.middleware.base import HeadAsGet, RawItemPaths, RequestMetrics
from polysem.server.middleware.browser import HostCheck, SecurityHeaders
from polysem.server.middleware.limits import BodyLimit, ConcurrencyLimit, Deadline, RateLimit
from polysem.server.routes import explain, health, items, overview, pages, search
from polysem.server.settings import Settings
from polysem.server.state import State

if TYPE_CHECKING:
    from polysem.models import Model

_ABOUT = """Search an index of images and texts, see why something was found, and change the index.

Errors are `{"error": {"code", "message"}}`. On loopback, reading needs no token; elsewhere everything needs
`Authorization: Bearer TOKEN`, and so does writing everywhere."""

# FastAPI would hand requests and stack traces to whatever OpenTelemetry finds configured in the environment.
_NO_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}


def create_app(
    index: str | Path,
    settings: Settings | None = None,
    *,
    model: Model | str | Path | None = None,
    on_failure: Callable[[Exception], None] | None = None,
) -> FastAPI:
    """An ASGI application that serves an index.

    Args:
        index: the folder of the index, or its Milvus address.
        settings: address, token and limits.
        model: the index's model, or where it is now.
        on_failure: called if the index or its model cannot be loaded.
    """
    settings = settings or Settings()
    metrics = Metrics()
    state = State(str(index), settings, metrics, model)
    metrics.watch(state)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        state.start(on_failure)
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
        telemetry=_NO_TELEMETRY,
    )
    app.state.polysem, app.state.auth = state, TokenAuth(settings)
    for routes in (health, search, explain, overview, items, pages):
        app.include_router(routes.router)
    pages.install(app)
    errors.install(app)
    _drop_422(app)
    # From the inside out: the last one added sees a request first.
    app.add_middleware(RawItemPaths)
    app.add_middleware(HeadAsGet)
    app.add_middleware(BodyLimit, limits=settings.limits)
    app.add_middleware(Deadline, seconds=settings.limits.request_seconds, metrics=metrics)
    app.add_middleware(ConcurrencyLimit, most=settings.limits.requests, metrics=metrics)
    app.add_middleware(RateLimit, rate=settings.rate, burst_seconds=settings.limits.burst_seconds, metrics=metrics)
    app.add_middleware(HostCheck, settings=settings)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(RequestMetrics, metrics=metrics)
    return app


def _drop_422(app: FastAPI) -> None:
    """Take FastAPI's 422 out of the OpenAPI document: an invalid request is answered with a 400."""
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
