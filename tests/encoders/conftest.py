from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from encoders import tiny_models
from polysem import encoders


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model of a family, made on first use."""
    folders: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in folders:
            folders[family] = tiny_models.save(family, tmp_path_factory.mktemp(family))
        return folders[family]

    return folder


@pytest.fixture
def build(saved: Callable[[str], Path]) -> Callable[..., encoders.Encoder]:
    """An encoder of a family, loaded by path, in evaluation mode."""

    def make(family: str, **knobs: object) -> encoders.Encoder:
        knobs = {**tiny_models.KNOBS.get(family, {}), **knobs}
        return encoders.build(tiny_models.ENCODER[family], model=str(saved(family)), **knobs).eval()

    return make
