"""A model's folder on disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from search.photos import tiny_model


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_all_its_files_have_the_usual_mode(tmp_path: Path, umask: int, mode: int) -> None:
    model, before = tiny_model(tmp_path), os.umask(umask)
    try:
        folder = model.save(tmp_path / "model")
    finally:
        os.umask(before)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"model.safetensors", "config.json", "README.md"} <= {path.name for path in files}
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in files} == {path.name: mode for path in files}
