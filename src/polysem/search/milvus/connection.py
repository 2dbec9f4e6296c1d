"""The address of an index in Milvus, as given after `--store`, and the connection to its server or to milvus-lite."""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from polysem.errors import InputError
from polysem.search.store import SearchError

PREFIX = "milvus+"
TOKEN = "POLYSEM_MILVUS_TOKEN"
DEFAULT_NAME = "polysem"
CONSISTENCY = ("Strong", "Session", "Bounded", "Eventually")
CONNECT_SECONDS = 5.0
CALL_SECONDS = 30.0
OLDEST = (2, 3, 2)
"""The first Milvus with arrays."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_LITE = re.compile(r"lite:(?P<path>.+\.db)(?:/(?P<name>[^/]*))?")
_EXAMPLES = "milvus+http://localhost:19530/NAME or milvus+lite:folder/file.db/NAME"
_LISTS = 1024
# The server of milvus-lite runs here too, and logs as errors what pymilvus asks and it has not.
_LOGGERS = ("pymilvus", "pymilvus.milvus_client", "milvus_lite", "grpc._server")

# milvus-lite runs within this process, one server for each file: its last user stops it.
_lite_users: Counter[str] = Counter()
_lite_lock = threading.Lock()


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
_OPTIONS = {"index": tuple(INDEXES), "consistency": CONSISTENCY}


@dataclass(frozen=True)
class Address:
    """The address of an index in Milvus. uri: what pymilvus connects to, a URL or a file. name: of the collection."""

    uri: str
    name: str = DEFAULT_NAME
    index: str = "HNSW"
    consistency: str = "Strong"
    token: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str, name: str | None = None) -> Self:
        """The address that a URL gives; `name` where the URL names no collection."""
        name = name or DEFAULT_NAME
        location, _, options = url.removeprefix(PREFIX).partition("?")
        shown = re.sub(r"//.*@", "//…@", url)  # without a password
        if not url.startswith(PREFIX):
            raise InputError(f"An address of Milvus looks like {_EXAMPLES}; got {shown!r}.")
        if location.startswith("lite:"):
            parts = _LITE.fullmatch(location)
            if parts is None:
                raise InputError(
                    f"milvus-lite keeps its data in a file whose name ends in .db; got {location!r}. "
                    "Write milvus+lite:folder/file.db/NAME."
                )
            address = cls(str(Path(parts["path"]).expanduser().absolute()), parts["name"] or name)
        else:
            try:
                address = cls._parse_server(location, name)
            except ValueError:  # a port that is not a number, an unfinished [
                raise InputError(f"Cannot read the address {shown!r}. It looks like {_EXAMPLES}.") from None
        if _NAME.fullmatch(address.name) is None:
            raise InputError(
                f"A collection's name has letters, digits and underscores, at most 200, and starts with no digit; got "
                f"{address.name!r}. Give it at the end of the address: {_EXAMPLES}."
            )
        for key, value in parse_qsl(options, keep_blank_values=True):
            if key not in _OPTIONS:
                raise InputError(f"An address of Milvus takes the options {', '.join(_OPTIONS)}; got {key!r}.")
            spelled = next((one for one in _OPTIONS[key] if one.lower() == value.lower()), None)
            if spelled is None:
                raise InputError(f"The option {key!r} is one of {', '.join(_OPTIONS[key])}; got {value!r}.")
            address = replace(address, **{key: spelled})
        return address

    @classmethod
    def _parse_server(cls, location: str, name: str) -> Self:
        parts = urlsplit(location)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError(location)
        port = parts.port or (443 if parts.scheme == "https" else 19530)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        token = os.environ.get(TOKEN, "")
        if parts.username is not None:
            token = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return cls(f"{parts.scheme}://{host}:{port}", parts.path.strip("/") or name, token=token)

    @property
    def lite(self) -> bool:
        return "://" not in self.uri

    @property
    def url(self) -> str:
        """The address to write down: whole, and without the token."""
        consistency = "" if self.consistency == "Strong" else f"?consistency={self.consistency}"
        return f"{PREFIX}{'lite:' if self.lite else ''}{self.uri}/{self.name}{consistency}"


class MilvusConnection:
    """Calls of `pymilvus.MilvusClient` on one server, each with a time limit; failures are `SearchError`s."""

    def __init__(self, address: Address, *, create: bool = False) -> None:
        """create: whether milvus-lite may begin a new file."""
        self.address = address
        self.pymilvus = _import_pymilvus(address.lite)
        self._client: Any = None
        self._uses_lite = False
        if address.lite:
            _check_file(Path(address.uri), create)
            with _lite_lock:
                _lite_users[address.uri] += 1
            self._uses_lite = True
        try:
            token = "" if address.lite else address.token
            self._client = self.pymilvus.MilvusClient(uri=address.uri, token=token, timeout=CONNECT_SECONDS)
            if not address.lite:
                self._check_version()
        except BaseException as error:
            self.close()
            if not isinstance(error, self.pymilvus.MilvusException):
                raise
            message = _read_message(error)
            if address.lite:
                raise SearchError(
                    f"Cannot open {address.uri} with milvus-lite ({message}). Another process may be using it: "
                    "milvus-lite serves one at a time. Wait for it or stop it, and see that the folder may be written."
                ) from None
            remedy = "See that Milvus runs there and that host and port are right"
            if "auth" in message.lower():
                remedy = f"Put user:password or a token into the environment variable {TOKEN}"
            text = f"Cannot connect to Milvus at {address.uri}: {message}. {remedy}, then run this again."
            raise SearchError(text) from None

    def call(
        self, method: str, *arguments: Any, doing: str = "read", timeout: float = CALL_SECONDS, **more: Any
    ) -> Any:
        """One call of the client. doing: what to say it was for."""
        if self._client is None:
            raise SearchError(f"The index {self.address.url} is closed. Open it again.")
        try:
            return getattr(self._client, method)(*arguments, timeout=timeout, **more)
        except self.pymilvus.MilvusException as error:
            raise SearchError(
                f"Cannot {doing} {self.address.url}: Milvus says: {_read_message(error)}. Look at the server's health "
                "and log, then run the same command again."
            ) from None

    def close(self) -> None:
        """Close the connection, and milvus-lite if it was the last to use its file. Safe to call twice."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(self.pymilvus.MilvusException):
                client.close()
        if self._uses_lite:
            self._uses_lite = False
            with _lite_lock:
                _lite_users[self.address.uri] -= 1
                if _lite_users[self.address.uri] <= 0:
                    del _lite_users[self.address.uri]
                    manager = importlib.import_module("milvus_lite.server_manager")
                    manager.server_manager_instance.release_server(self.address.uri)

    def __del__(self) -> None:
        if hasattr(self, "_uses_lite") and not sys.is_finalizing():
            self.close()

    def _check_version(self) -> None:
        given = str(self._client.get_server_version(timeout=CONNECT_SECONDS))
        digits = given.lstrip("v").split("-")[0].split(".")[:3]
        if all(part.isdigit() for part in digits) and tuple(map(int, digits)) < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            raise SearchError(
                f"The server at {self.address.uri} is Milvus {given}; polysem needs {oldest} or newer. Update it."
            )


def _read_message(error: BaseException) -> str:
    text = str(getattr(error, "message", "") or error)
    return " ".join(text.split())[:300].rstrip(". ")


def _check_file(path: Path, create: bool) -> None:
    if create:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SearchError(f"Cannot create {path.parent}: {error.strerror}. Choose another folder.") from None
    elif not path.exists():
        raise SearchError(f"There is no {path}. Make an index there with `polysem index … --store milvus+lite:{path}`.")


def _import_pymilvus(lite: bool) -> Any:
    quiet = "pymilvus" not in sys.modules
    try:
        module = importlib.import_module("pymilvus")
        if lite:
            importlib.import_module("milvus_lite.server_manager")
    except ImportError as error:
        install = "Install the extra: pip install 'polysem[milvus]'"
        raise SearchError(f"An index in Milvus needs pymilvus and milvus-lite ({error}). {install}.") from None
    if quiet:  # it would log every error beside the exception; an application that imported it before has chosen itself
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return module
