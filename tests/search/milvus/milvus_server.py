"""One Milvus server for all processes of a test run: `python milvus_server.py FOLDER PID` starts it and returns.

It tells its port in FOLDER/port, or why there is none in FOLDER/failed, and ends when the process PID does.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def configured(folder: Path) -> Any:
    """A server whose every port is its own: its etcd would take 2380 always, and end where another has it."""
    from milvus import MilvusServer, MilvusServerConfig

    config = MilvusServerConfig(data_dir=str(folder / "data"))
    names = [name for name in config.configurable_items if name.endswith("_port")]
    web, peer, *ports = free_ports(2 + len(names))
    config.update(**dict(zip(names, ports, strict=True)))
    client = config.configs["etcd_port"]
    etcd = folder / "etcd.yaml"
    etcd.write_text(
        f"name: default\nlisten-client-urls: http://localhost:{client}\nadvertise-client-urls: http://localhost:{client}\n"
        f"listen-peer-urls: http://localhost:{peer}\ninitial-advertise-peer-urls: http://localhost:{peer}\n"
        f"initial-cluster: default=http://localhost:{peer}\n"
    )
    config.template_text = config.template_text.replace("\netcd:\n", f"\netcd:\n  config:\n    path: {etcd}\n", 1)
    # How long a reader that insists on the newest state waits, in milliseconds; 200 by default.
    config.set("proxy.timeTickInterval", 20)
    server = MilvusServer(config, wait_for_started=False)
    server.webservice_port = web
    return server


def started(server: Any, watched: int) -> bool:
    """Wait until it says that it is well."""
    while True:  # who waits for it gives up by and by, and then the process that is watched ends
        if not alive(watched) or server.server_proc.poll() is not None:
            return False
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.webservice_port}/healthz", timeout=10) as answer:
                if b"OK" in answer.read():
                    return True
        except OSError:
            pass
        time.sleep(0.1)


def serve(folder: Path, watched: int) -> None:
    server = configured(folder)
    try:
        server.start()
        if not started(server, watched):
            log = (folder / "data" / "logs" / "milvus-stderr.log").read_text(errors="replace")
            (folder / "failed").write_text(f"exit code {server.server_proc.poll()}, {log[:200]!r}")
            return
        partial = folder / "port.partial"
        partial.write_text(str(server.listen_port))
        partial.replace(folder / "port")
        while alive(watched) and server.server_proc.poll() is None:
            time.sleep(0.2)
    except Exception as error:
        (folder / "failed").write_text(f"{type(error).__name__}: {error}")
    finally:
        server.stop()
        shutil.rmtree(folder / "data", ignore_errors=True)


if __name__ == "__main__":
    place, pid = Path(sys.argv[1]), int(sys.argv[2])
    if os.fork() == 0:
        os.setsid()
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(silence, stream)
        serve(place, pid)
