"""Small videos: as frame features and as real files, and untrained models that read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from encoders import tiny_models
from polysem import models
from polysem.data.vocabulary import Vocabulary
from polysem.models import Model
from search.photos import COLOURS

WIDTH = 12
CAPTIONS = {f"video{n}": [f"a {name} picture", f"something {name}"] for n, name in enumerate(COLOURS)}
FRAMES = 6
"""Taken of each video by `raw_model`."""

SETS: dict[str, dict[str, Any]] = {
    "gpo": {"name": "single", "pooling": "gpo"},
    "slots": {"name": "slots", "k": 3, "heads": 2, "head_dim": 4, "ff_mult": 2},
    "classes": {"name": "classes", "layers": 1, "heads": 2, "ff": 10},
}


def _built(encoder: dict[str, Any], sets: str) -> Model:
    torch.manual_seed(0)
    vocabulary = Vocabulary.build([text for texts in CAPTIONS.values() for text in texts], min_count=1)
    own = SETS[sets]
    image = {"encoder": encoder, "sets": own} | ({"pool": {"name": "max"}} if sets == "slots" else {})
    text = {"encoder": {"name": "bigru", "vocab_size": len(vocabulary), "word_dim": 6}, "sets": own}
    made = models.build(16, image, text, {"name": "smooth_chamfer" if sets == "slots" else "cosine"}).eval()
    made.text.encoder.vocabulary = vocabulary
    return made


def feature_model(sets: str = "gpo") -> Model:
    """A model of precomputed frame features, `WIDTH` wide."""
    return _built({"name": "frames", "input_dim": WIDTH, "dim": 16}, sets)


def raw_model(folder: Path, sets: str = "gpo") -> Model:
    """A model of video files. folder: where its tiny ResNet's files may go."""
    if not (folder / "resnet").exists():
        tiny_models.save("resnet", folder / "resnet")
    inner = {"name": "grid", "model": str(folder / "resnet"), "image_size": 32}
    return _built({"name": "video_frames", "encoder": inner, "frames": FRAMES, "dim": 16}, sets)


def make_features(folder: Path, lengths: Sequence[int] = (5, 1, 9, 80)) -> Path:
    """Frame features of videos of these lengths, with captions, as MSR-VTT has them."""
    (folder / "features").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, length in zip(CAPTIONS, lengths, strict=True):
        np.save(folder / "features" / f"{name}.npy", rng.normal(size=(length, WIDTH)).astype(np.float32))
    (folder / "captions.json").write_text(json.dumps(CAPTIONS))
    return folder


def make_videos(folder: Path) -> Path:
    """Real files of six seconds: one colour each, and of another in the fourth and fifth second."""
    (folder / "videos").mkdir(parents=True)
    names = list(COLOURS)
    for n, name in enumerate(CAPTIONS):
        usual, other = COLOURS[names[n]], COLOURS[names[(n + 1) % len(names)]]
        write_video(folder / "videos" / f"{name}.mp4", [usual] * 3 + [other] * 2 + [usual])
    (folder / "captions.json").write_text(json.dumps(CAPTIONS))
    return folder


def write_video(
    path: Path, seconds: Sequence[tuple[int, int, int]], rate: int = 8, size: int = 48, codec: str = "libx264"
) -> Path:
    """A video that shows each of these colours for a second."""
    import av

    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=rate)
        stream.width = stream.height = size
        stream.pix_fmt = "yuv420p"
        for colour in seconds:
            for _ in range(rate):
                frame = av.VideoFrame.from_ndarray(np.full((size, size, 3), colour, np.uint8), format="rgb24")
                for packet in stream.encode(frame):
                    out.mux(packet)
        for packet in stream.encode():
            out.mux(packet)
    return path
