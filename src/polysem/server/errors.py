"""Errors as clients see them: a code, a sentence, and never a path or a trace. Those go to the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

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
_MESSAGES = {
    404: "There is nothing here.",
    405: "This method is not allowed here.",
    413: "The body is too large.",
    500: "Something went wrong. The server's log says what.",
}


class ApiError(Exception):
    """An error answer. message: for the client to read; by default that of the status."""

    def __init__(
        self, status: int, message: str = "", code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status, self.message = status, message or _MESSAGES.get(status, "The request cannot be read.")
        self.code, self.headers = code or CODES[status], dict(headers or {})
        super().__init__(self.message)

    def response(self) -> JSONResponse:
        # Lone surrogates may come in through JSON and cannot go out again.
        message = self.message.encode("utf-8", "replace").decode()
        return JSONResponse({"error": {"code": self.code, "message": message}}, self.status, headers=self.headers)


class OverloadError(ApiError):
    """Too much at once: the client may try again."""

    def __init__(self, why: str = "The server is busy.", code: str | None = None) -> None:
        super().__init__(503, f"{why} Try again in a moment.", code, {"Retry-After": "1"})


def to_api_error(error: Exception) -> ApiError:
    """What a client may know of an error. The library's own messages may name files of this machine."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        status = error.status_code if error.status_code in CODES else 400 if error.status_code < 500 else 500
        return ApiError(status, headers=error.headers)
    if isinstance(error, RequestValidationError):
        return ApiError(400, _describe_problems(error.errors()))
    if not isinstance(error, PolysemError):
        return ApiError(500)
    from polysem.search import FilterError, IndexBusyError, SearchError

    if isinstance(error, FilterError | UnknownNameError):
        return ApiError(400, str(error))
    if isinstance(error, IndexBusyError):
        return OverloadError("The index is being written by another process.")
    if isinstance(error, SearchError):
        log.error("The index refused: %s", error)
        return ApiError(500, "The index could not do this. The server's log says why.")
    log.warning("Refused: %s", error)
    return ApiError(400, "This cannot be done with what was given. The server's log says why.")


async def answer_error(_: Request, error: Exception) -> JSONResponse:
    return to_api_error(error).response()


def _describe_problems(problems: Sequence[Any]) -> str:
    """Pydantic's problems as one sentence each, without what was given: it may be long, or not valid Unicode."""
    sentences = []
    for problem in problems[:5]:
        field = ".".join(str(part) for part in problem.get("loc", ())[1:])
        why = str(problem.get("msg", "invalid")).removeprefix("Value error, ").rstrip(".")
        sentences.append(f"{field}: {why}." if field else f"{why[:1].upper()}{why[1:]}.")
    return " ".join(sentences)[:500]
