"""Whose browser asks: names that are not ours, and other sites' pages, are turned away.

DNS rebinding makes a foreign page's own name point at this machine; its requests then carry that name as their Host.
Other sites' pages can send requests here too, but a browser says so in `Sec-Fetch-Site` or `Origin`. Programs send
neither, and are judged by the token alone.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from polysem.server.errors import ApiError
from polysem.server.settings import Settings

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OURS = frozenset({"same-origin", "none"})


class OwnOrigin:
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
        from_page = path.startswith("/api/") or method not in _READING
        if not from_page:  # a link from elsewhere may open the page
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
