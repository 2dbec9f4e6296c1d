"""Settings of a server: where it listens, who may write, and how much anyone may ask for."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from dataclasses import dataclass, field
from pathlib import Path

from polysem.errors import ConfigError

BASE = "/api/v1"
SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Limits:
    """How much one client, and all together, may ask for. The defaults fit a laptop."""

    json_bytes: int = 64 * 1024
    upload_bytes: int = 32 << 20
    pixels: int = 50_000_000
    """Of an uploaded picture, decoded."""
    request_seconds: float = 30.0
    """From the first byte of a request's body to the last of its answer."""
    header_seconds: float = 10.0
    """For the head of a request to arrive, and for an idle connection to say something."""
    connections: int = 1024
    requests: int = 128
    """Under way at once; one more is answered 503."""
    work: int = 64
    """Searches, encodings and pictures waiting for a thread or having one; one more is answered 503."""
    pictures: int = 4
    """Uploads decoded in memory at once; the others wait."""
    threads: int = field(default_factory=lambda: max(2, min(8, os.cpu_count() or 2)))
    batch: int = 32
    """Texts encoded together; pictures a quarter of it."""
    rate: float | None = None
    """Requests per second of one client; by default 1,000 on loopback and 50 elsewhere. 0: as many as it likes."""
    burst_seconds: float = 4.0
    """A client that was quiet may ask for this many seconds' worth at once."""
    failures: int = 10
    """Wrong tokens of one client in a minute; after that it has to wait."""
    cached: int = 4096
    """Embeddings of queries that are kept."""
    thumbnail_bytes: int = 64 << 20
    """Of items' pictures made small, that are kept."""
    uploads: int = 256
    upload_seconds: float = 3600.0
    shutdown_seconds: int = 30


@dataclass(frozen=True)
class Settings:
    """token: what writing needs, and off loopback everything. names: what the server may be called in a URL, besides
    its address and localhost."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    read_only: bool = False
    names: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"A port is a number from 0 (any free one) to 65535, got {self.port}.")
        if self.token is not None:
            check_token(self.token)
        if not self.is_loopback and self.token is None:
            raise ConfigError(
                f"{self.host} can be reached from other machines, so a token is needed. Make one and give it: "
                "`(umask 077; openssl rand -hex 32 > token)`, then --token-file token. "
                "Or leave --host out to serve this machine alone."
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return self.host.lower() == "localhost" or ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:  # a name: it may resolve to anything
            return False

    @property
    def reads_need_token(self) -> bool:
        return not self.is_loopback

    @property
    def rate(self) -> float:
        if self.limits.rate is not None:
            return self.limits.rate
        return 1000.0 if self.is_loopback else 50.0

    @property
    def allowed_names(self) -> frozenset[str]:
        """What may stand in a request's Host. Addresses are judged apart: a name is what rebinding needs."""
        own = {"localhost", self.host.strip("[]").lower(), *(name.lower() for name in self.names)}
        if not self.is_loopback:
            own.add(socket.gethostname().lower())
        return frozenset(own - {"", "0.0.0.0", "::"})


def check_token(token: str) -> None:
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"A token is at least {SHORTEST_TOKEN} ASCII characters without spaces, so that nobody guesses it. "
            "Make one with `openssl rand -hex 32`."
        )


def read_token(path: Path) -> str:
    """The token in a file that others may not read."""
    try:
        token = path.read_text(encoding="ascii").strip()
        others = stat.S_IMODE(path.stat().st_mode) & 0o077 if os.name == "posix" else 0
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise ConfigError(f"The token cannot be read from {path}: {why}.") from None
    if others:
        raise ConfigError(f"Other users of this machine can read {path}. Keep the token secret: chmod 600 {path}")
    check_token(token)
    return token
