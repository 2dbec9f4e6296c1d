"""The address of an index in Milvus, as given after `--store`, and the index types over its means."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from polysem.errors import InputError

PREFIX = "milvus+"
TOKEN = "POLYSEM_MILVUS_TOKEN"
DEFAULT_NAME = "polysem"
CONSISTENCY = ("Strong", "Session", "Bounded", "Eventually")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_LITE = re.compile(r"(?P<path>.+\.db)(?:/(?P<name>[^/]*))?")
_EXAMPLES = "milvus+http://localhost:19530/NAME or milvus+lite:folder/file.db/NAME"
_LISTS = 1024


class MeanIndexKind(NamedTuple):
    """An index type of Milvus over the means. build: its parameters. search: those that find `limit` candidates."""

    build: dict[str, Any]
    search: Callable[[int], dict[str, Any]]


def _wide(limit: int) -> int:
    """Twice the candidates: a graph search no wider than its result misses many."""
    return max(128, min(2 * limit, 32_768))


INDEXES: dict[str, MeanIndexKind] = {
    "HNSW": MeanIndexKind({"M": 32, "efConstruction": 256}, lambda limit: {"ef": _wide(limit)}),
    "FLAT": MeanIndexKind({}, lambda _: {}),
    "IVF_SQ8": MeanIndexKind({"nlist": _LISTS}, lambda limit: {"nprobe": min(_LISTS, max(32, limit // 4))}),
    "DISKANN": MeanIndexKind({}, lambda limit: {"search_list": _wide(limit)}),
    "AUTOINDEX": MeanIndexKind({}, lambda _: {}),
}


@dataclass(frozen=True)
class Address:
    """The address of an index in Milvus. uri: what pymilvus connects to, an URL or a file. name: of the collection."""

    uri: str
    name: str = DEFAULT_NAME
    index: str = "HNSW"
    consistency: str = "Strong"
    token: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str, name: str | None = None) -> Self:
        """The address that an URL gives; `name` where the URL names no collection."""
        if not is_milvus(url):
            raise InputError(f"An address of Milvus looks like {_EXAMPLES}; got {_hide_secrets(url)!r}.")
        location, _, options = url.removeprefix(PREFIX).partition("?")
        address = cls._lite(location) if location.startswith("lite:") else cls._server(location)
        if not address.name:
            address = replace(address, name=name or DEFAULT_NAME)
        if _NAME.fullmatch(address.name) is None:
            raise InputError(
                f"A collection's name has letters, digits and underscores, at most 200, and starts with no digit; got "
                f"{address.name!r}. Give it at the end of the address: {_EXAMPLES}."
            )
        for key, value in parse_qsl(options, keep_blank_values=True):
            address = address._with(key, value)
        return address

    @classmethod
    def _lite(cls, location: str) -> Self:
        parts = _LITE.fullmatch(location.removeprefix("lite:"))
        if parts is None:
            raise InputError(
                f"milvus-lite keeps its data in a file whose name ends in .db; got {location!r}. "
                "Write milvus+lite:folder/file.db/NAME."
            )
        return cls(str(Path(parts["path"]).expanduser().absolute()), parts["name"] or "")

    @classmethod
    def _server(cls, location: str) -> Self:
        parts = _split(location)
        if parts is None:
            raise InputError(
                f"Cannot read the address {_hide_secrets(PREFIX + location)!r}. It looks like {_EXAMPLES}."
            )
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
    """Whether a text is the address of an index in Milvus, not a folder."""
    return text.startswith(PREFIX)


def _split(location: str) -> SplitResult | None:
    try:
        parts = urlsplit(location)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, an unfinished [
        return None
    return parts if usable else None


def _hide_secrets(url: str) -> str:
    """An address for a message, without what stands before the @."""
    return re.sub(r"//.*@", "//…@", url)
