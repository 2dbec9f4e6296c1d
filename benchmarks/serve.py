"""The server under load: 32 clients at once for a minute, one at a time in the same run, and 10,000 connections.

    python benchmarks/serve.py MODEL [--items 20000] [--seconds 60] [--clients 32] [--opens 10000]

MODEL is a folder of a trained model: it encodes the queries, as in use. The items are random sets of its width and
size around a few hundred directions; what they show does not change what a request costs. Clients and server are
processes of their own on the same machine, so they share its cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

WORDS = ("dog", "cat", "red", "blue", "car", "tree", "on", "under", "beside", "beach", "table", "small", "two", "old")
REPEATED = 0.2
"""Of the queries, the share that was asked before: what the cache sees."""


def make_index(place: Path, model: str, items: int) -> int:
    """How many numbers the set of a query has."""
    from polysem.models import load
    from polysem.search import Entry, Index, VectorBatch

    rng = np.random.default_rng(0)
    with Index.create(place, load(model) if not Path(model).exists() else model) as index:
        shape = index.manifest.sets["image"], index.manifest.dim
        centres = rng.normal(size=(300, *shape))
        for start in range(0, items, 5000):
            count = min(5000, items - start)
            sets = centres[rng.integers(0, 300, count)] + 0.7 * rng.normal(size=(count, *shape))
            sets /= np.linalg.norm(sets, axis=2, keepdims=True)
            entries = [
                Entry(
                    f"photo-{start + number:06d}.jpg",
                    None,
                    f"caption {start + number}",
                    {"year": 2000 + number % 25},
                    [f"label{number % 20}"],
                )
                for number in range(count)
            ]
            index.add(VectorBatch("image", entries, sets.astype(np.float32)))
        return index.manifest.sets["text"] * index.manifest.dim


def query(rng: np.random.Generator, asked: list[str], repeated: float = REPEATED) -> dict[str, Any]:
    if asked and rng.random() < repeated:
        text = asked[int(rng.integers(len(asked)))]
    else:
        text = " ".join(rng.choice(WORDS, size=int(rng.integers(3, 9))))
        asked.append(text)
    return {"text": text, "k": 24, "mode": "exact"}


class Connection:
    """A client that keeps its connection, as browsers do. Hand-made, so that the client costs little."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        answer = await reader.readuntil(b"\r\n\r\n")
        status = int(answer[9:12])
        length = next(
            int(line.split(b":")[1]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        return status, await reader.readexactly(length)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def load(
    port: int, clients: int, seconds: float, pid: int, asked: list[str], repeated: float = REPEATED
) -> dict[str, Any]:
    """Each client asks again as soon as it has its answer. asked: queries so far. repeated: the share of those."""
    times: list[float] = []
    failures: list[str] = []
    memory: list[int] = []
    end = time.perf_counter() + seconds

    async def ask(number: int) -> None:
        rng, connection = np.random.default_rng([number, len(asked)]), Connection(port)
        while time.perf_counter() < end:
            start = time.perf_counter()
            try:
                status, data = await connection.post("/api/v1/search", query(rng, asked, repeated))
            except (OSError, asyncio.IncompleteReadError) as error:
                failures.append(repr(error))
                continue
            times.append(time.perf_counter() - start)
            if status != 200 or data.count(b'"rank"') != 24:
                failures.append(f"{status} {data[:80]!r}")
        connection.close()

    async def watch() -> None:
        while time.perf_counter() < end:
            memory.append(resident(pid))
            await asyncio.sleep(1)

    start, used = time.perf_counter(), processor_seconds(pid)
    await asyncio.gather(watch(), *(ask(number) for number in range(clients)))
    spent = time.perf_counter() - start
    ordered = sorted(times)
    half = len(memory) // 2
    return {
        "clients": clients,
        "seconds": round(spent, 1),
        "requests": len(times),
        "errors": len(failures),
        "first_errors": failures[:3],
        "requests_per_second": round(len(times) / spent, 1),
        "server_processor_ms_per_request": round(1e3 * (processor_seconds(pid) - used) / len(times), 1),
        "p50_ms": round(1e3 * statistics.median(ordered), 1),
        "p99_ms": round(1e3 * ordered[int(0.99 * (len(ordered) - 1))], 1),
        "max_ms": round(1e3 * ordered[-1], 1),
        "resident_mb": {
            "first_10_s": round(max(memory[:10]) / 2**20, 1),
            "first_half_max": round(max(memory[: half or 1]) / 2**20, 1),
            "second_half_max": round(max(memory[half:]) / 2**20, 1),
        },
    }


def opens(port: int, wanted: int) -> dict[str, Any]:
    """So many connections that say nothing, opened as fast as they can be, and how the server fares meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, wanted + 1000)), hard))
    crowd: list[socket.socket] = []
    refused = failed = 0
    health: list[float] = []
    start = time.perf_counter()
    for number in range(wanted):
        made = socket.socket()
        made.settimeout(5)
        try:
            made.connect(("127.0.0.1", port))
            crowd.append(made)
        except OSError:
            failed += 1
            made.close()
        if number % 1000 == 999:
            health.append(until_answered(port))
    opened = time.perf_counter() - start
    for each in crowd:
        each.settimeout(0.001)
        with contextlib.suppress(OSError):
            refused += each.recv(12) == b"HTTP/1.1 503"
    open_at_once = len(crowd)
    recovered = until_answered(port)
    for each in crowd:
        each.close()
    return {
        "wanted": wanted,
        "opened": open_at_once,
        "not_connected": failed,
        "answered_503": refused,
        "seconds": round(opened, 1),
        "health_answered_after_s": [round(each, 2) for each in health],
        "answers_again_after_s": round(recovered, 2),
    }


def until_answered(port: int, most: float = 60.0) -> float:
    """Seconds until /healthz says ready: connections beyond the limit are turned away until silent ones are dropped."""
    start = time.perf_counter()
    while time.perf_counter() - start < most:
        if healthy(port):
            return time.perf_counter() - start
        time.sleep(0.05)
    return float("inf")


def healthy(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as made:
            made.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return made.recv(12) == b"HTTP/1.1 200"
    except OSError:
        return False


def processor_seconds(pid: int) -> float:
    """What the server has used of all cores: the figure that other programs on the machine change least."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--opens", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "serve.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "index"
        start = time.perf_counter()
        vectors = make_index(place, given.model, given.items)
        print(f"index of {given.items:,} items in {time.perf_counter() - start:.0f} s", flush=True)
        command = [
            sys.executable,
            "-c",
            "from polysem.cli import main; main()",
            "serve",
            str(place),
            "--port",
            "0",
            "--json",
        ]
        start = time.perf_counter()
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        port = int(json.loads(server.stdout.readline())["url"].rpartition(":")[2])  # type: ignore[union-attr]
        listening = time.perf_counter() - start
        try:
            while not healthy(port):
                time.sleep(0.1)
            ready = time.perf_counter() - start
            print(f"listens after {listening:.1f} s, ready after {ready:.1f} s", flush=True)
            asked: list[str] = []
            alone = asyncio.run(load(port, 1, given.seconds, server.pid, asked))
            print(json.dumps(alone), flush=True)
            crowd = asyncio.run(load(port, given.clients, given.seconds, server.pid, asked))
            print(json.dumps(crowd), flush=True)
            # Memory grows while the cache of embeddings fills, and only then: here nothing new is asked.
            known = asyncio.run(load(port, given.clients, given.seconds / 2, server.pid, asked[-2000:], 1.0))
            print(json.dumps(known), flush=True)
            connections = opens(port, given.opens)
            print(json.dumps(connections), flush=True)
        finally:
            server.terminate()
            code = server.wait(60)
    found = {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load_average_at_end": [round(each, 1) for each in os.getloadavg()],
        },
        "items": given.items,
        "model": Path(given.model).name,
        "repeated_queries": REPEATED,
        "seconds_to_listen": round(listening, 2),
        "seconds_to_ready": round(ready, 2),
        "one_at_a_time": alone,
        "together": crowd,
        "together_nothing_new": known,
        "queries_cached_mb": round(min(len(asked), 4096) * vectors * 4 / 2**20, 1),
        "connections": connections,
        "exit_code": code,
    }
    given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
