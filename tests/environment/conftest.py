from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where packages are looked for, whatever is installed on the machine."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder)])
    importlib.invalidate_caches()
    return folder
