"""Local features of a whole collection, extracted once into a `FeatureStore`."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polysem.data.collection import Collection
from polysem.data.store import FeatureManifest, FeatureStore, StoreWriter
from polysem.data.store.layout import Dtype
from polysem.data.store.writer import SHARD_BYTES
from polysem.encoders.base import Encoder
from polysem.encoders.pipeline import Job, Pace, Progress, run
from polysem.encoders.pixel_encoder import PixelEncoder
from polysem.encoders.text import TextEncoder, Tokens
from polysem.errors import ConfigError, InputError
from polysem.features import LocalFeatures
from polysem.malloc_tuning import freed_memory_kept

# On the CPU, measured with EfficientNet-Lite0: 4 pictures at a time are as fast as 8 or 16, and take less memory.
CPU_BATCH, ACCELERATOR_BATCH = 4, 64


def extract(
    collection: Collection,
    encoder: PixelEncoder,
    out: str | Path,
    *,
    batch_size: int | None = None,
    dtype: Dtype = "float16",
    workers: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    retry_skipped: bool = False,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[Progress], None] = lambda _: None,
) -> FeatureStore:
    """The features of every picture or raw video of the collection, by item id. Goes on where an earlier call stopped.

    What cannot be read is recorded in `store.skipped` with the reason and not tried again, unless `retry_skipped`
    asks for it. With `world_size` processes each takes every so-many-th picture and writes its own
    files; the store that is returned holds what all of them have committed by then.

    batch_size: pictures or videos encoded together; None chooses by device. workers: threads that read them, and on the
    CPU threads that encode; None takes as many as torch uses.
    """
    if collection.content == "features":
        raise InputError(
            f"{collection.name} is a collection of {collection.kind}, not of pictures: it needs no extraction. "
            "Train on it directly, or give a folder of pictures."
        )
    _check(encoder, "pixels", collection.content, rank, world_size)
    if (collection.content == "videos") != (encoder.kind == "video"):
        raise InputError(
            f"{collection.name} holds {collection.content}, and {encoder.config['name']!r} reads {encoder.kind}s. "
            'Videos are read by video_frames: --encoder video_frames --set encoder=\'{"name": "grid"}\'.'
        )
    device = _device(encoder)
    places = range(rank, len(collection), world_size)

    def prepare(place: int) -> Tensor:
        return encoder.read(collection[places[place]].media.path)

    def encode(pixels: Tensor) -> LocalFeatures:
        features: LocalFeatures = encoder(pixels.to(device))
        return features

    job = Job([collection[place].id for place in places], prepare, encode)
    usual, per_item = CPU_BATCH if device.type == "cpu" else ACCELERATOR_BATCH, encoder.pictures_per_item
    batch = batch_size or max(1, usual // per_item)
    pace = _pace(device, batch, max(4 * batch, 64 // per_item), workers)
    manifest = _manifest(collection, encoder, dtype)
    return _fill(job, encoder, StoreWriter(Path(out), manifest, rank, shard_bytes), pace, retry_skipped, progress)


def extract_texts(
    collection: Collection,
    encoder: TextEncoder,
    out: str | Path,
    *,
    batch_size: int | None = None,
    dtype: Dtype = "float16",
    rank: int = 0,
    world_size: int = 1,
    retry_skipped: bool = False,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[Progress], None] = lambda _: None,
) -> FeatureStore:
    """The features of every caption, under the key `"{item id}#{number of the caption, from 0}"`. Like `extract`."""
    _check(encoder, "tokens", "captions", rank, world_size)
    device = _device(encoder)
    captions = [(item.id, number, text) for item in collection for number, text in enumerate(item.captions)]
    captions = captions[rank::world_size]

    def prepare(place: int) -> Tensor:
        return encoder.tokenize([captions[place][2]]).ids[0]

    def encode(ids: Tensor) -> LocalFeatures:
        features: LocalFeatures = encoder(Tokens(ids, torch.ones_like(ids, dtype=torch.bool)).to(device))
        return features

    job = Job([f"{key}#{number}" for key, number, _ in captions], prepare, encode)
    batch = batch_size or (32 if device.type == "cpu" else 256)
    # Captions are light, and a wide window finds more of equal length. One reader: tokenisers are not made for more.
    pace = _pace(device, batch, max(16 * batch, 512), workers=None, readers=1)
    manifest = _manifest(collection, encoder, dtype)
    return _fill(job, encoder, StoreWriter(Path(out), manifest, rank, shard_bytes), pace, retry_skipped, progress)


def _fill(
    job: Job,
    encoder: Encoder,
    writer: StoreWriter,
    pace: Pace,
    retry_skipped: bool,
    progress: Callable[[Progress], None],
) -> FeatureStore:
    training = encoder.training
    encoder.eval()  # dropout or moving averages have no place in what is kept
    try:
        with writer, freed_memory_kept() if pace.alone else nullcontext():
            done = writer.done if retry_skipped else writer.done | writer.skipped
            run(job, writer, pace, set(done), progress)
    finally:
        encoder.train(training)
    return FeatureStore.open(writer.folder)


def _check(encoder: Encoder, takes: str, what: str, rank: int, world_size: int) -> None:
    if encoder.takes != takes:
        raise InputError(
            f"{encoder.config['name']!r} takes {encoder.takes}, so it cannot encode {what}. "
            "`polysem parts encoders` lists the encoders and what they take."
        )
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank must be from 0 to world_size - 1, got rank {rank} of {world_size}.")


def _device(encoder: Encoder) -> torch.device:
    return next((tensor.device for tensor in encoder.parameters()), torch.device("cpu"))


def _pace(device: torch.device, batch: int, window: int, workers: int | None, readers: int | None = None) -> Pace:
    for name, value in (("batch_size", batch), ("workers", workers)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}.")
    if device.type == "cpu":
        threads = workers or torch.get_num_threads()
        return Pace(batch, window, readers or threads, threads, alone=True)
    return Pace(batch, window, readers or workers or min(8, os.cpu_count() or 1), encoders=1, alone=False)


def _manifest(collection: Collection, encoder: Encoder, dtype: Dtype) -> FeatureManifest:
    seen: Any = getattr(encoder, "preprocessing", None)
    return FeatureManifest(
        collection=collection.name,
        fingerprint=encoder.fingerprint(),
        dim=encoder.dim,
        dtype=dtype,
        encoder=encoder.config,
        preprocessing=asdict(seen) if is_dataclass(seen) and not isinstance(seen, type) else {},
    )
