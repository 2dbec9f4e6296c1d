from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from polysem.models import Model
from polysem.server import Limits, Settings
from search.photos import make_photos, tiny_model
from server.running import TOKEN, client, make_index


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, model: Model, photos: Path) -> Path:
    """An index that tests of this module share and leave as it is."""
    return make_index(tmp_path_factory.mktemp("shared") / "index", model, photos)


@pytest.fixture(scope="module")
def reader(place: Path, model: Model) -> Iterator[TestClient]:
    with client(place, model) as made:
        yield made


@pytest.fixture
def own_place(tmp_path: Path, model: Model, photos: Path) -> Path:
    """An index that a test may change."""
    return make_index(tmp_path / "index", model, photos)


@pytest.fixture
def writer(own_place: Path, model: Model) -> Iterator[TestClient]:
    with client(own_place, model, Settings(token=TOKEN, limits=Limits(rate=0))) as made:
        yield made
