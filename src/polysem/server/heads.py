"""HEAD, for whoever only looks whether something is there: what GET would say, without the body."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class Heads:
    """Routes see a GET. The server that sends the answer still knows better, and leaves the body out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            seen = {**scope, "method": "GET"}
            await self._app(seen, receive, send)
            scope["route"] = seen.get("route")  # for whoever counts
        else:
            await self._app(scope, receive, send)
