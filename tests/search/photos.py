"""A folder of small pictures with captions, and an untrained model that reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from encoders import tiny_models
from polysem import models
from polysem.data.vocabulary import Vocabulary
from polysem.models import Model

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 40, 230), "white": (240, 240, 240)}
CAPTIONS = {name: [f"a {name} picture", f"something {name}"] for name in COLOURS}


def tiny_model(
    folder: Path, compared: dict[str, Any] | None = None, seed: int = 0, k: int = 2, text_k: int | None = None
) -> Model:
    """A small ResNet and a GRU, sets of `k`, of texts of `text_k`. folder: where the ResNet's files may go."""
    if not (folder / "resnet").exists():
        tiny_models.save("resnet", folder / "resnet")
    torch.manual_seed(seed)
    vocabulary = Vocabulary.build([text for texts in CAPTIONS.values() for text in texts], min_count=1)
    sets = {"name": "slots", "k": k, "heads": 2, "head_dim": 4, "ff_mult": 2}
    image = {
        "encoder": {"name": "grid", "model": str(folder / "resnet"), "image_size": 32},
        "pool": {"name": "max"},
        "sets": sets,
    }
    text = {
        "encoder": {"name": "bigru", "vocab_size": len(vocabulary), "word_dim": 6},
        "sets": {**sets, "k": text_k or k},
    }
    made = models.build(16, image, text, compared or {"name": "smooth_chamfer"}).eval()
    made.text.encoder.vocabulary = vocabulary
    return made


def make_photos(folder: Path) -> Path:
    """One picture of each colour, with captions, labels and a year in a table."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    rows = []
    for number, (name, colour) in enumerate(COLOURS.items()):
        save(folder / f"{name}.png", colour, rng)
        for caption in CAPTIONS[name]:
            rows.append({"image": f"{name}.png", "caption": caption, "labels": [name], "year": 2019 + number})
    (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder


def save(path: Path, colour: tuple[int, int, int], rng: np.random.Generator) -> None:
    noise = rng.integers(-20, 20, (40, 50, 3))
    Image.fromarray(np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)).save(path)
