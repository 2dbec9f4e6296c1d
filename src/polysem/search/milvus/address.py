"""Where an index in Milvus is: what the user writes after `--store`, without its secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from polysem.errors import InputError
from polysem.search.milvus.indexes import INDEXES

PREFIX = "milvus+"
TOKEN = "POLYSEM_MILVUS_TOKEN"
DEFAULT_NAME = "polysem"
CONSISTENCY = ("Strong", "Session", "Bounded", "Eventually")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_LITE = re.compile(r"(?P<path>.+\.db)(?:/(?P<name>[^/]*))?")
_EXAMPLES = "milvus+http://localhost:19530/NAME or milvus+lite:folder/file.db/NAME"


@dataclass(frozen=True)
class Address:
    """uri: what pymilvus connects to, an URL or the path of a file. name: of the collection."""

    uri: str
    name: str = DEFAULT_NAME
    index: str = "HNSW"
    consistency: str = "Strong"
    token: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str, name: str | None = None) -> Self:
        """The address that an URL gives; `name` where the URL names no collection."""
        if not is_milvus(url):
            raise InputError(f"An address of Milvus looks like {_EXAMPLES}; got {_shown(url)!r}.")
        place, _, options = url.removeprefix(PREFIX).partition("?")
        found = cls._lite(place) if place.startswith("lite:") else cls._server(place)
        if not found.name:
            found = replace(found, name=name or DEFAULT_NAME)
        if _NAME.fullmatch(found.name) is None:
            raise InputError(
                f"A collection's name has letters, digits and underscores, at most 200, and starts with no digit; got "
                f"{found.name!r}. Give it at the end of the address: {_EXAMPLES}."
            )
        for key, value in parse_qsl(options, keep_blank_values=True):
            found = found._with(key, value)
        return found

    @classmethod
    def _lite(cls, place: str) -> Self:
        parts = _LITE.fullmatch(place.removeprefix("lite:"))
        if parts is None:
            raise InputError(
                f"milvus-lite keeps its data in a file whose name ends in .db; got {place!r}. "
                "Write milvus+lite:folder/file.db/NAME."
            )
        return cls(str(Path(parts["path"]).expanduser().absolute()), parts["name"] or "")

    @classmethod
    def _server(cls, place: str) -> Self:
        parts = _split(place)
        if parts is None:
            raise InputError(f"Cannot read the address {_shown(PREFIX + place)!r}. It looks like {_EXAMPLES}.")
        port = parts.port or (443 if parts.scheme == "https" else 19530)
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
        token = os.environ.get(TOKEN, "")
        if parts.username is not None:
            token = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return cls(f"{parts.scheme}://{host}:{port}", parts.path.strip("/"), token=token)

    def _with(self, key: str, value: str) -> Self:
        known: dict[str, Sequence[str]] = {"index": tuple(INDEXES), "consistency": CONSISTENCY}
        if key not in known:
            raise InputError(f"An address of Milvus takes the options {', '.join(known)}; got {key!r}.")
        spelled = next((one for one in known[key] if one.lower() == value.lower()), None)
        if spelled is None:
            raise InputError(f"The option {key!r} is one of {', '.join(known[key])}; got {value!r}.")
        return replace(self, index=spelled) if key == "index" else replace(self, consistency=spelled)

    @property
    def lite(self) -> bool:
        return "://" not in self.uri

    @property
    def url(self) -> str:
        """The address to write down: whole, and without the token."""
        consistency = "" if self.consistency == "Strong" else f"?consistency={self.consistency}"
        return f"{PREFIX}{'lite:' if self.lite else ''}{self.uri}/{self.name}{consistency}"


def is_milvus(text: str) -> bool:
    """Whether a text means an index in Milvus rather than a folder."""
    return text.startswith(PREFIX)


def _split(place: str) -> SplitResult | None:
    try:
        parts = urlsplit(place)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, an unfinished [
        return None
    return parts if usable else None


def _shown(url: str) -> str:
    """An address for a message: whoever is named before the @ stays out of it."""
    return re.sub(r"//.*@", "//…@", url)
