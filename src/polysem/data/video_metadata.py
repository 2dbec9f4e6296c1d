"""What a video's header says, read when somebody asks: a collection opens at once however many videos it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from polysem.data.video import VideoError, video_duration


class VideoFacts(Mapping[str, Any]):
    """{"duration": seconds}; empty for a video that cannot be read, of which decoding it will say why."""

    __slots__ = ("_found", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Any] | None = None

    def _facts(self) -> dict[str, Any]:
        if self._found is None:
            try:
                self._found = {"duration": round(video_duration(self._path), 3)}
            except VideoError:
                self._found = {}
        return self._found

    def __getitem__(self, name: str) -> Any:
        return self._facts()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts())

    def __len__(self) -> int:
        return len(self._facts())

    def __repr__(self) -> str:
        return repr(self._facts())
