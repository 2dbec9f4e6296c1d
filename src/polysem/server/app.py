"""The ASGI application: routes, and the middleware around them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.telemetry import TelemetryConfig
from starlette.exceptions import HTTPException

from polysem._version import __version__
from polysem.errors import PolysemError
from polysem.server import middleware
from polysem.server.auth import TokenAuth
from polysem.server.errors import ApiError, answer_error
from polysem.server.metrics import Metrics
from polysem.server.routes import explain, items, overview, pages, search
from polysem.server.settings import Settings
from polysem.server.state import State

if TYPE_CHECKING:
    from polysem.models import Model

_ABOUT = """Search an index of images and texts, see why something was found, and change the index.

Errors are `{"error": {"code", "message"}}`. On loopback, reading needs no token; elsewhere everything needs
`Authorization: Bearer TOKEN`, and so does writing everywhere."""

# FastAPI would hand requests and stack traces to whatever OpenTelemetry finds configured in the environment.
_NO_TELEMETRY = TelemetryConfig(tracing=False, metrics=False, logs=False, operation_spans=False, auto_configure=False)
_MIDDLEWARE = (
    middleware.RequestMetrics,
    middleware.SecurityHeaders,
    middleware.HostCheck,
    middleware.RateLimit,
    middleware.ConcurrencyLimit,
    middleware.Deadline,
    middleware.BodyLimit,
    middleware.RequestRewrite,
)
"""From the outside in: the first one sees a request first."""


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """Without FastAPI's 422: an invalid request is answered with a 400."""
        if self.openapi_schema is None:
            document = super().openapi()
            for path in document["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            for name in ("HTTPValidationError", "ValidationError"):
                document["components"]["schemas"].pop(name, None)
        return super().openapi()


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

    app = _App(
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
    for routes in (pages, search, explain, overview, items):
        app.include_router(routes.router)
    pages.install(app)
    for kind in (ApiError, HTTPException, RequestValidationError, PolysemError):
        app.add_exception_handler(kind, answer_error)
    for layer in reversed(_MIDDLEWARE):  # the last one added sees a request first
        app.add_middleware(layer, settings=settings, metrics=metrics)
    return app
