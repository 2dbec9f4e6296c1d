"""Authentication: a bearer token for writing, and off loopback for everything."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, Request, Response, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from polysem.server.errors import ApiError
from polysem.server.middleware import TokenBuckets
from polysem.server.settings import Settings

COOKIE = "polysem_session"
_bearer = HTTPBearer(auto_error=False, scheme_name="token", description="The token of --token-file.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


class UnauthorisedError(ApiError):
    def __init__(self) -> None:
        message = "This needs the server's token: Authorization: Bearer TOKEN."
        super().__init__(401, message, headers={"WWW-Authenticate": "Bearer"})


class TokenAuth:
    """Checks tokens in constant time; a client that gives a few wrong ones has to wait.

    Attributes:
        session: what the page's cookie holds: made from the token, and not usable as one.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._failures = TokenBuckets(settings.limits.failures / 60, settings.limits.failures)
        token = None if settings.token is None else settings.token.encode()
        self._digest = None if token is None else hashlib.sha256(token).digest()
        self.session = None if token is None else hmac.new(token, b"polysem session", "sha256").hexdigest()

    def has_token(self, request: Request, given: HTTPAuthorizationCredentials | None) -> bool:
        if given is None or self._digest is None:
            return False
        client = request.client.host if request.client else ""
        if self.settings.limits.failures and not self._failures.has(client):
            raise ApiError(429, "Too many wrong tokens. Wait a minute.", headers={"Retry-After": "60"})
        digest = hashlib.sha256(given.credentials.encode("utf-8", "surrogateescape")).digest()
        if secrets.compare_digest(digest, self._digest):
            return True
        self._failures.take(client)
        return False

    def has_session(self, request: Request) -> bool:
        """Not counted: 256 bits are not guessed, and a browser sends the cookie of an older token, or of a neighbour on
        another port, with every picture."""
        cookie = request.cookies.get(COOKIE)
        if cookie is None or self.session is None:
            return False
        return secrets.compare_digest(cookie.encode("utf-8", "surrogateescape"), self.session.encode())


def require_read(request: Request, given: Credentials) -> None:
    auth: TokenAuth = request.app.state.auth
    if auth.settings.reads_need_token and not (auth.has_session(request) or auth.has_token(request, given)):
        raise UnauthorisedError


def require_write(request: Request, given: Credentials) -> None:
    auth: TokenAuth = request.app.state.auth
    if auth.settings.read_only:
        raise ApiError(403, "This server is read-only.")
    if auth.settings.token is None:
        raise ApiError(403, "This server takes no changes: it was started without --token-file.")
    # A browser sends the cookie by itself, the token only when the page means it.
    if not auth.has_token(request, given):
        raise UnauthorisedError


def require_json(request: Request, _: Credentials = None) -> None:
    """Refuse a body that is not JSON: forms of other sites can send plain text without a browser asking first."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "Send the body as application/json.")


class AuthenticatedRoute(APIRoute):
    """A route that checks authentication before it reads the body, and again as FastAPI's dependencies.

    FastAPI alone reads the body first, and strangers could fill the disk with what is refused afterwards.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        checks = [each.dependency for each in self.dependencies if each.dependency in _CHECKS]

        async def check_and_handle(request: Request) -> Response:
            given = await _bearer(request)
            for check in checks:
                check(request, given)
            return await handler(request)

        return check_and_handle


_CHECKS = (require_read, require_write, require_json)
Reading, Writing, JsonBody = Depends(require_read), Depends(require_write), Depends(require_json)
