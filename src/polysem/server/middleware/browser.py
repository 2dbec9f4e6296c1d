"""What protects a browser: security headers, and a check of Host, Origin and Sec-Fetch-Site.

The page has no inline script or style and asks no other host for anything, so nothing of the kind is allowed. DNS
rebinding makes a foreign page's own name point at this machine; its requests then carry that name as their Host. Pages
of other sites can send requests here too, but a browser says so in `Sec-Fetch-Site` or `Origin`. Programs send neither,
and are judged by the token alone.

Starlette's TrustedHostMiddleware does not serve for the Host: it cuts IPv6 addresses at their first colon, takes the
first of several Host headers, and has no rule for addresses as opposed to names.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polysem.server.errors import ApiError
from polysem.server.settings import Settings

PAGE = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",  # blob: a picture that was just dropped on the page
        "media-src 'self'",
        "connect-src 'self'",
        "font-src 'self'",
        "manifest-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
DATA = "default-src 'none'; frame-ancestors 'none'; sandbox"
"""Of everything but pages: opened by itself, a picture or a JSON text runs nothing."""

_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}


class SecurityHeaders:
    """Adds the security headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _ALWAYS.items():
                    headers[name] = value
                is_page = headers.get("content-type", "").startswith("text/html")
                headers["Content-Security-Policy"] = PAGE if is_page else DATA
                if "cache-control" not in headers:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        await self._app(scope, receive, guarded)


_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OURS = frozenset({"same-origin", "none"})


class HostCheck:
    """Refuses a Host that is not the server's own, and requests that pages of other sites send."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope["method"], scope["path"], Headers(scope=scope))
            except ApiError as error:
                await error.send(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, method: str, path: str, headers: Headers) -> None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._known(hosts[0]):
            raise ApiError(
                400, "The server does not go by this name. Use its address, or start it with --allow-host NAME."
            )
        protected = path.startswith("/api/") or method not in _READING
        if not protected:  # a link from elsewhere may open the page
            return
        # Another port of the same machine is "same-site", and somebody else.
        if headers.get("sec-fetch-site", "none") not in _OURS:
            raise ApiError(403, "Other sites may not use this server.")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != hosts[0].lower():
            raise ApiError(403, "Other sites may not use this server.")

    def _known(self, host: str) -> bool:
        try:
            name = "" if "@" in host else urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._settings.allowed_names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._settings.is_loopback
