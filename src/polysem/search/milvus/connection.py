"""The connection to a Milvus server or to milvus-lite, with time limits and errors a user can act on."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from polysem.search.milvus.address import TOKEN, Address
from polysem.search.store import SearchError

CONNECT_SECONDS = 5.0
CALL_SECONDS = 30.0
OLDEST = (2, 3, 2)
"""The first Milvus with arrays."""
# The server of milvus-lite runs here too, and logs as errors what pymilvus asks and it has not.
_LOGGERS = ("pymilvus", "pymilvus.milvus_client", "milvus_lite", "grpc._server")
_INSTALL = "Install the extra: pip install 'polysem[milvus]'"

# milvus-lite runs within this process, one server for each file: its last user stops it.
_lite_users: Counter[str] = Counter()
_lite_lock = threading.Lock()


class MilvusConnection:
    """Calls of `pymilvus.MilvusClient` on one server, each with a time limit; failures are `SearchError`s."""

    def __init__(self, address: Address, *, create: bool = False) -> None:
        """create: whether milvus-lite may begin a new file."""
        self.address = address
        self.pymilvus = _import_pymilvus(address.lite)
        self._client: Any = None
        if address.lite:
            _check_file(Path(address.uri), create)
            with _lite_lock:
                _lite_users[address.uri] += 1
        try:
            self._client = self.pymilvus.MilvusClient(
                uri=address.uri, token="" if address.lite else address.token, timeout=CONNECT_SECONDS
            )
            self._check_version()
        except self.pymilvus.MilvusException as error:
            self.close()
            raise _unreachable(address, error) from None
        except BaseException:
            self.close()
            raise

    def call(
        self, method: str, *arguments: Any, doing: str = "read", timeout: float = CALL_SECONDS, **more: Any
    ) -> Any:
        """One call of the client. doing: what to say it was for."""
        if self._client is None:
            raise SearchError(f"The index {self.address.url} is closed. Open it again.")
        try:
            return getattr(self._client, method)(*arguments, timeout=timeout, **more)
        except self.pymilvus.MilvusException as error:
            raise describe_failure(doing, self.address, error) from None

    def close(self) -> None:
        """Close the connection, and milvus-lite if it was the last to use its file. Safe to call twice."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(self.pymilvus.MilvusException):
                client.close()
        if self.address.lite and not getattr(self, "_released", False):
            self._released = True
            with _lite_lock:
                _lite_users[self.address.uri] -= 1
                if _lite_users[self.address.uri] <= 0:
                    del _lite_users[self.address.uri]
                    manager = importlib.import_module("milvus_lite.server_manager")
                    manager.server_manager_instance.release_server(self.address.uri)

    def __del__(self) -> None:
        if hasattr(self, "_client") and not sys.is_finalizing():
            self.close()

    def _check_version(self) -> None:
        if self.address.lite:
            return
        given = str(self._client.get_server_version(timeout=CONNECT_SECONDS))
        digits = given.lstrip("v").split("-")[0].split(".")[:3]
        if all(part.isdigit() for part in digits) and tuple(map(int, digits)) < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            raise SearchError(
                f"The server at {self.address.uri} is Milvus {given}; polysem needs {oldest} or newer. Update it."
            )


def describe_failure(doing: str, address: Address, error: Exception) -> SearchError:
    """A `SearchError` for what Milvus refused."""
    return SearchError(
        f"Cannot {doing} {address.url}: Milvus says: {_read_message(error)}. Look at the server's health and log, then "
        "run the same command again."
    )


def _unreachable(address: Address, error: Exception) -> SearchError:
    if address.lite:
        return SearchError(
            f"Cannot open {address.uri} with milvus-lite ({_read_message(error)}). Another process may be using it: "
            "milvus-lite serves one at a time. Wait for it or stop it, and see that the folder may be written."
        )
    message = _read_message(error)
    if "auth" in message.lower():
        remedy = f"Put user:password or a token into the environment variable {TOKEN}"
    else:
        remedy = "See that Milvus runs there and that host and port are right"
    return SearchError(f"Cannot connect to Milvus at {address.uri}: {message}. {remedy}, then run this again.")


def _read_message(error: Exception) -> str:
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
        raise SearchError(f"An index in Milvus needs pymilvus and milvus-lite ({error}). {_INSTALL}.") from None
    if quiet:  # it would log every error beside the exception; an application that imported it before has chosen itself
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return module
