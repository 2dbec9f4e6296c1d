"""Errors as clients see them: a code, a sentence, and never a path or a trace. Those go to the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from polysem.errors import PolysemError, UnknownNameError

log = logging.getLogger("polysem.server")

CODES = {
    400: "bad_request",
    401: "unauthorised",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    409: "conflict",
    413: "too_large",
    415: "unsupported",
    416: "no_such_range",
    429: "rate_limited",
    500: "internal",
    503: "overloaded",
    504: "timeout",
}
_SENTENCES = {
    404: "There is nothing here.",
    405: "This method is not allowed here.",
    413: "The body is too large.",
    500: "Something went wrong. The server's log says what.",
}


class ApiError(Exception):
    """An answer that is not the one asked for. message: for the client to read."""

    def __init__(
        self, status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})
        self.code = code or CODES[status]

    def response(self) -> JSONResponse:
        # Lone surrogates may come in through JSON and cannot go out again.
        said = self.message.encode("utf-8", "replace").decode()
        return JSONResponse({"error": {"code": self.code, "message": said}}, self.status, headers=self.headers)

    async def send(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer from outside any route."""
        await self.response()(scope, receive, send)


def overloaded(why: str = "The server is busy.") -> ApiError:
    return ApiError(503, f"{why} Try again in a moment.", headers={"Retry-After": "1"})


def from_library(error: PolysemError) -> ApiError:
    """What a client may know of an error of the library, whose own message may name files of this machine."""
    from polysem.search import FilterError, IndexBusyError, SearchError

    if isinstance(error, FilterError | UnknownNameError):
        return ApiError(400, str(error))
    if isinstance(error, IndexBusyError):
        return overloaded("The index is being written by another process.")
    if isinstance(error, SearchError):
        log.error("The index refused: %s", error)
        return ApiError(500, "The index could not do this. The server's log says why.")
    log.warning("Refused: %s", error)
    return ApiError(400, "This cannot be done with what was given. The server's log says why.")


def install(app: FastAPI) -> None:
    """Make every error of a route an `ApiError` on the wire."""

    async def api_error(_: Request, error: Exception) -> JSONResponse:
        return error.response() if isinstance(error, ApiError) else ApiError(500, _SENTENCES[500]).response()

    async def http_error(_: Request, error: Exception) -> JSONResponse:
        status = error.status_code if isinstance(error, HTTPException) else 500
        known = status if status in CODES else 400 if status < 500 else 500
        headers = getattr(error, "headers", None)
        said = _SENTENCES.get(known, "The request cannot be read.")
        return ApiError(known, said, headers=headers).response()

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        return ApiError(400, _told(error.errors() if isinstance(error, RequestValidationError) else [])).response()

    async def library_error(_: Request, error: Exception) -> JSONResponse:
        return (from_library(error) if isinstance(error, PolysemError) else ApiError(500, _SENTENCES[500])).response()

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(PolysemError, library_error)


def _told(problems: Sequence[Any]) -> str:
    """Pydantic's findings as one sentence each, without what was given: it may be long, or no Unicode."""
    told = []
    for problem in problems[:5]:
        place = ".".join(str(part) for part in problem.get("loc", ())[1:])
        why = str(problem.get("msg", "invalid")).removeprefix("Value error, ").rstrip(".")
        told.append(f"{place}: {why}." if place else f"{why}.")
    return " ".join(told)[:500] or "The request cannot be read."
