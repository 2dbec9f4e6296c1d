"""Ids in addresses, as they were sent."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from polysem.server.routes.shared import BASE

_ITEMS = f"{BASE}/items/".encode()


class EncodedIds:
    """Servers decode an address before they look for its route, and `a%2Fimage` becomes the picture of `a`. Below
    /items the address stays as it was sent; `key_of` decodes it afterwards."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope.get("raw_path", b"").startswith(_ITEMS):
            scope["path"] = scope["raw_path"].partition(b"?")[0].decode("latin-1")
        await self._app(scope, receive, send)
