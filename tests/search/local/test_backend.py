"""The checks of every backend on a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from polysem.search.local import LocalBackend
from polysem.search.store import Manifest
from search.backend_checks import BackendChecks


class Folder:
    def __init__(self, path: Path) -> None:
        self.path, self.opened = path, list[LocalBackend]()

    def empty(self, wanted: Manifest) -> LocalBackend:
        return self._kept(LocalBackend.create(self.path, wanted))

    def again(self, write: bool = False) -> LocalBackend:
        return self._kept(LocalBackend.open(self.path, write))

    def _kept(self, index: LocalBackend) -> LocalBackend:
        self.opened.append(index)
        return index


class TestLocal(BackendChecks):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Folder:
        return Folder(tmp_path / "index")
