"""What routes have in common: the server's state, and the addresses of items."""

from __future__ import annotations

from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import Annotated, Any
from urllib.parse import quote, unquote_to_bytes

from fastapi import Depends, Request

from polysem.server.errors import ApiError
from polysem.server.state import State

BASE = "/api/v1"


def _state(request: Request) -> State:
    found: State = request.app.state.polysem
    return found


Shared = Annotated[State, Depends(_state)]


def image_address(key: str, side: str, path: str | None) -> str | None:
    """Where an item's picture can be had, None if it has none."""
    if path is None or path.endswith(".npy"):
        return None
    return f"{BASE}/items/{quote(key, safe='')}/image" + ("?side=text" if side == "text" else "")


def is_video(path: str | None) -> bool:
    """Whether an item's file is called as videos are; what it holds is looked at when it is opened."""
    from polysem.data.video import EXTENSIONS

    return path is not None and PurePath(path).suffix.lower() in EXTENSIONS


def video_address(key: str, side: str, path: str | None) -> str | None:
    """Where an item's video can be had, None if it is none."""
    if not is_video(path):
        return None
    return f"{BASE}/items/{quote(key, safe='')}/video" + ("?side=text" if side == "text" else "")


def decode_id(raw: str) -> str:
    """The id in an address. It is still percent-encoded here, so that an id may hold slashes (see `RawItemPaths`)."""
    try:
        key = unquote_to_bytes(raw.encode("latin-1")).decode()
    except UnicodeError:
        raise ApiError(400, "The id in the address is no UTF-8.") from None
    if not key or "\0" in key or len(key) > 1024:
        raise ApiError(404, "The index holds no such item.")
    return key


def without_paths(value: Any) -> Any:
    """The same with every absolute path cut to its last part: whoever reads about a model need not know the disk."""
    if isinstance(value, dict):
        return {key: without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(inner) for inner in value]
    if isinstance(value, str) and len(value) < 4096:
        for kind in (PurePosixPath, PureWindowsPath):
            path: PurePath = kind(value)
            if path.is_absolute():
                return path.name
    return value
