"""A demo that takes a second: discs instead of OpenMoji, random encoders, three short trainings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from encoders import tiny_models
from polysem.environment.paths import PHOTO_BASE, PHOTO_SMALL, SHIPPED
from polysem.synthetic import dataset_folder
from polysem.synthetic.scenes import make
from search.photos import tiny_model
from synthetic.fake_art import fake_art, fake_kinds

SCENES = 40
KINDS = {"dog": (220, 30, 30), "cat": (30, 200, 40), "ball": (40, 40, 230), "grass": (230, 220, 40)}


def fake_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator of scenes without the packages of the extra `offline`."""
    monkeypatch.setattr(make, "load_kinds", fake_kinds)
    monkeypatch.setattr(make, "openmoji_art", lambda pixels: fake_art())
    monkeypatch.setattr(dataset_folder, "installed_version", lambda package: "1.0")


def tiny_settings(folder: Path) -> list[str]:
    """Changes to the recipe; the encoders are saved in `folder` if they are not there yet."""
    places = {family: folder / family for family in ("resnet", "bert")}
    for family, place in places.items():
        if not place.exists():
            tiny_models.save(family, place)
    return [
        f"image.encoder.model={places['resnet']}",
        "image.encoder.image_size=32",
        f"text.encoder.model={places['bert']}",
        "image.sets.cells=null",
        "dim=16",
        "training.epochs=2",
        "training.batch=16",
    ]


def ship_tiny(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """A tiny model, saved in `folder` if it is not there yet, in the place of the one for photographs."""
    place = folder / "photo-small"
    if not place.exists():
        tiny_model(folder).save(place)
    monkeypatch.setitem(SHIPPED, PHOTO_SMALL, place)
    monkeypatch.delitem(SHIPPED, PHOTO_BASE, raising=False)
    monkeypatch.setattr("polysem.demo.steps.find_weights", lambda name: None)
    return place


def make_photos(folder: Path, count: int = 48, captioned: int | None = None) -> Path:
    """Pictures of one colour each; a table with a caption for the first `captioned` of them, by default for all."""
    folder.mkdir(parents=True)
    rng, rows = np.random.default_rng(0), []
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        noise = rng.integers(-20, 20, (40, 50, 3))
        name = f"{number:03d} {kind}.png"
        Image.fromarray(np.clip(np.array(KINDS[kind]) + noise, 0, 255).astype(np.uint8)).save(folder / name)
        if captioned is None or number < captioned:
            size = ("big", "small")[number // len(KINDS) % 2]
            rows.append({"image": name, "caption": f"a {size} {kind} {number}"})
    if rows:
        (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder


def files(folder: Path, kept: Callable[[Path], bool] = lambda path: True) -> dict[str, tuple[int, int]]:
    """Every file below a folder: when it was written, and how large it is."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and kept(path))
    return {path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.stat().st_size) for path in found}
