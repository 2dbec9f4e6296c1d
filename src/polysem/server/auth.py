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
from polysem.server.middleware.limits import TokenBuckets
from polysem.server.settings import Settings

COOKIE = "polysem_session"
_bearer = HTTPBearer(auto_error=False, scheme_name="token", description="The token of --token-file.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


class TokenAuth:
    """Checks tokens in constant time; a client that gives a few wrong ones has to wait."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._failures = TokenBuckets(settings.limits.failures / 60, settings.limits.failures)
        token = settings.token
        self._digest = None if token is None else hashlib.sha256(token.encode()).digest()
        # What the page's cookie holds: made from the token, and of no use as one.
        self.session = None if token is None else hmac.new(token.encode(), b"polysem session", "sha256").hexdigest()

    def has_token(self, client: str, given: HTTPAuthorizationCredentials | None) -> bool:
        if given is None or self._digest is None:
            return False
        self._check_failures(client)
        digest = hashlib.sha256(given.credentials.encode("utf-8", "surrogateescape")).digest()
        if secrets.compare_digest(digest, self._digest):
            return True
        self._failures.take(client)
        return False

    def has_session(self, cookie: str | None) -> bool:
        """Not counted: 256 bits are not guessed, and a browser sends the cookie of an older token, or of a neighbour on
        another port, with every picture."""
        if cookie is None or self.session is None:
            return False
        return secrets.compare_digest(cookie.encode("utf-8", "surrogateescape"), self.session.encode())

    def _check_failures(self, client: str) -> None:
        if self._settings.limits.failures and not self._failures.has(client):
            raise ApiError(429, "Too many wrong tokens. Wait a minute.", headers={"Retry-After": "60"})

    def check_reading(self, request: Request, given: HTTPAuthorizationCredentials | None) -> None:
        if not self._settings.reads_need_token:
            return
        if not (self.has_session(request.cookies.get(COOKIE)) or self.has_token(client_address(request), given)):
            raise unauthorised()

    def check_writing(self, request: Request, given: HTTPAuthorizationCredentials | None) -> None:
        if self._settings.read_only:
            raise ApiError(403, "This server is read-only.")
        if self._digest is None:
            raise ApiError(403, "This server takes no changes: it was started without --token-file.")
        # A browser sends the cookie by itself, the token only when the page means it.
        if not self.has_token(client_address(request), given):
            raise unauthorised()


def unauthorised() -> ApiError:
    said = "This needs the server's token: Authorization: Bearer TOKEN."
    return ApiError(401, said, headers={"WWW-Authenticate": "Bearer"})


def client_address(request: Request) -> str:
    return request.client.host if request.client else ""


def require_read(request: Request, given: Credentials) -> None:
    if require_read not in _passed_checks(request):
        auth: TokenAuth = request.app.state.auth
        auth.check_reading(request, given)


def require_write(request: Request, given: Credentials) -> None:
    if require_write not in _passed_checks(request):
        auth: TokenAuth = request.app.state.auth
        auth.check_writing(request, given)


def require_json(request: Request, _: Credentials = None) -> None:
    """Refuse a body that is not JSON: forms of other sites can send plain text without a browser asking first."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "Send the body as application/json.")


class AuthenticatedRoute(APIRoute):
    """A route that checks authentication before it reads the body.

    FastAPI reads the body first, and strangers could fill the disk with what is refused afterwards.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        checks = [each.dependency for each in self.dependencies if each.dependency in _CHECKS]

        async def guarded(request: Request) -> Response:
            given = await _bearer(request)
            for check in checks:
                check(request, given)
                _passed_checks(request).add(check)
            return await handler(request)

        return guarded


def _passed_checks(request: Request) -> set[Any]:
    """The checks that this request has passed."""
    found: set[Any] = request.scope.setdefault("polysem.passed", set())
    return found


_CHECKS = (require_read, require_write, require_json)
Reading = Depends(require_read)
Writing = Depends(require_write)
JsonBody = Depends(require_json)
