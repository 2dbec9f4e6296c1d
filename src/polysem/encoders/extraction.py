"""Local features of a whole collection, extracted once into a `FeatureStore`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polysem.cpu_blocks import single_threaded_pool
from polysem.data.collection import Collection, Skipped, caption_id
from polysem.data.store import FeatureManifest, FeatureStore, StoreEntry, StoreWriter
from polysem.data.store.layout import Dtype
from polysem.data.store.writer import SHARD_BYTES
from polysem.encoders.base import Encoder, eval_mode
from polysem.encoders.image import PixelEncoder
from polysem.encoders.pipeline import encode_windows, windows
from polysem.encoders.text import TextEncoder, Tokens
from polysem.errors import ConfigError, InputError
from polysem.features import LocalFeatures
from polysem.malloc_tuning import keep_freed_memory
from polysem.progress import Progress, ignore

COMMIT_SECONDS = 1.0
"""How much work a sudden end may cost."""
# On the CPU, measured with EfficientNet-Lite0: 4 pictures at a time are as fast as 8 or 16, and take less memory.
CPU_BATCH, ACCELERATOR_BATCH = 4, 64


@dataclass(frozen=True)
class _Job:
    """What to extract: the i-th key's input is `load(i)`; inputs of one shape, stacked, are encoded together.

    batch: most inputs encoded together. window: inputs grouped by shape, and the bound of what is in memory.
    readers: threads that load; None chooses by device.
    """

    keys: Sequence[str]
    load: Callable[[int], Tensor]
    encode: Callable[[Tensor], LocalFeatures]
    batch: int
    window: int
    readers: int | None = None


OnSkip = Callable[[Skipped], None] | None


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
    progress: Progress = ignore,
    on_skip: OnSkip = None,
) -> FeatureStore:
    """Extract the features of every image or raw video of a collection, by item id; resumes an earlier call.

    What cannot be read is recorded in `store.skipped` with the reason. With `world_size` processes each takes every
    so-many-th item and writes its own files; the store that is returned holds what all of them have committed by then.

    Args:
        out: the folder of the store.
        batch_size: images or videos encoded together; None chooses by device.
        dtype: of the stored values.
        workers: threads that read and, on the CPU, threads that encode; None takes as many as torch uses.
        rank: this process's number of `world_size`.
        retry_skipped: try items again that an earlier call could not read.
        shard_bytes: size of one file of the store.
        progress: called with "extracting", the items encoded or skipped, and all of this rank's items.
        on_skip: called with every item that this call leaves out.
    """
    if collection.content == "features":
        raise InputError(f"{collection.name} is a collection of {collection.kind}: train on it without extraction.")
    _check(encoder, "pixels", collection.content, rank, world_size, batch_size, workers)
    if (collection.content == "videos") != (encoder.kind == "video"):
        raise InputError(
            f"{collection.name} holds {collection.content}, and {encoder.config['name']!r} reads {encoder.kind}s. "
            'Videos are read by video_frames: --encoder video_frames --set encoder=\'{"name": "grid"}\'.'
        )
    device = _device(encoder)
    items = [collection[row] for row in range(rank, len(collection), world_size)]
    usual, per_item = CPU_BATCH if device.type == "cpu" else ACCELERATOR_BATCH, encoder.pictures_per_item
    batch = max(1, usual // per_item) if batch_size is None else batch_size
    job = _Job(
        [item.id for item in items],
        lambda row: encoder.read(items[row].media.path),
        lambda pixels: encoder(pixels.to(device)),
        batch,
        max(4 * batch, 64 // per_item),
    )
    manifest = _make_manifest(collection, encoder, dtype)
    with StoreWriter(Path(out), manifest, rank, shard_bytes) as writer:
        _extract(job, encoder, writer, workers, retry_skipped, progress, on_skip)
    return FeatureStore.open(out)


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
    progress: Progress = ignore,
    on_skip: OnSkip = None,
) -> FeatureStore:
    """Extract the features of every caption, under its key of `caption_keys`. Arguments as of `extract`."""
    _check(encoder, "tokens", "captions", rank, world_size, batch_size)
    device = _device(encoder)
    captions = collection.captions[rank::world_size]
    batch = (32 if device.type == "cpu" else 256) if batch_size is None else batch_size
    job = _Job(
        caption_keys(collection)[rank::world_size],
        lambda row: encoder.tokenize([captions[row]]).ids[0],
        lambda ids: encoder(Tokens(ids, torch.ones_like(ids, dtype=torch.bool)).to(device)),
        batch,
        max(16 * batch, 512),  # captions are light, and a wide window finds more of equal length
        readers=1,  # tokenisers are not made for more
    )
    manifest = _make_manifest(collection, encoder, dtype)
    with StoreWriter(Path(out), manifest, rank, shard_bytes) as writer:
        _extract(job, encoder, writer, None, retry_skipped, progress, on_skip)
    return FeatureStore.open(out)


def caption_keys(collection: Collection) -> list[str]:
    """The key of each caption in a store of their features: `"{item id}#{number of the caption, from 0}"`."""
    return [caption_id(item.id, number) for item in collection for number in range(len(item.captions))]


def _extract(
    job: _Job,
    encoder: Encoder,
    writer: StoreWriter,
    workers: int | None,
    retry: bool,
    progress: Progress,
    on_skip: OnSkip,
) -> None:
    """Extract every key that is not in the store yet and commit at least every second or so."""
    # On a CPU torch runs each thread's operations on that thread: its own threads meet at the end of every operation,
    # which on a busy machine costs more than it brings.
    on_cpu = _device(encoder).type == "cpu"
    encoders = (workers or torch.get_num_threads()) if on_cpu else 1
    readers = job.readers or (encoders if on_cpu else workers or min(8, os.cpu_count() or 1))
    pools = [(single_threaded_pool if on_cpu else ThreadPoolExecutor)(threads) for threads in (readers, encoders)]
    done = set(writer.done if retry else writer.done | writer.skipped)
    count, committed = sum(key in done for key in job.keys), time.monotonic()
    progress("extracting", count, len(job.keys))
    try:
        # Dropout or moving averages have no place in what is kept.
        with eval_mode(encoder), keep_freed_memory() if on_cpu else nullcontext():
            for rows, result in encode_windows(
                # Cut by place in the whole list: where a run goes on, the rest of a window is grouped as it would have
                # been.
                ([row for row in w if job.keys[row] not in done] for w in windows(range(len(job.keys)), job.window)),
                job.load,
                lambda rows, inputs: _make_entries(job, rows, inputs),
                job.batch,
                group=lambda item: tuple(item.shape),
                readers=pools[0],
                encoders=pools[1],
                ahead=job.window,
                name=job.keys.__getitem__,
            ):
                skipped = Skipped(job.keys[rows[0]], str(result)) if isinstance(result, InputError) else None
                writer.add([] if isinstance(result, InputError) else result, [] if skipped is None else [skipped])
                if time.monotonic() - committed > COMMIT_SECONDS:
                    writer.commit()
                    committed = time.monotonic()
                if skipped is not None and on_skip is not None:
                    on_skip(skipped)
                count += len(rows)
                progress("extracting", count, len(job.keys))
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)  # after an error or Ctrl-C nobody wants what is still queued
    writer.commit()


def _make_entries(job: _Job, rows: list[int], inputs: list[Tensor]) -> list[StoreEntry]:
    with torch.inference_mode():
        features = job.encode(torch.stack(inputs))
        values, mask = features.values.float().cpu().numpy(), features.mask.cpu().numpy()
        summary = None if features.summary is None else features.summary.float().cpu().numpy()
    return [
        StoreEntry(
            job.keys[row],
            values[place] if mask[place].all() else values[place][mask[place]],
            None if summary is None else summary[place],
        )
        for place, row in enumerate(rows)
    ]


def _check(
    encoder: Encoder, takes: str, what: str, rank: int, world_size: int, batch: int | None, workers: int | None = None
) -> None:
    if encoder.takes != takes:
        name = encoder.config["name"]
        raise InputError(f"{name!r} takes {encoder.takes}, so it cannot encode {what}. See `polysem parts encoders`.")
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank must be from 0 to world_size - 1, got rank {rank} of {world_size}.")
    for name, value in (("batch_size", batch), ("workers", workers)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}.")


def _device(encoder: Encoder) -> torch.device:
    return next((tensor.device for tensor in encoder.parameters()), torch.device("cpu"))


def _make_manifest(collection: Collection, encoder: Encoder, dtype: Dtype) -> FeatureManifest:
    seen: Any = getattr(encoder, "preprocessing", None)
    return FeatureManifest(
        collection=collection.name,
        fingerprint=encoder.fingerprint(),
        dim=encoder.dim,
        dtype=dtype,
        encoder=encoder.config,
        preprocessing=asdict(seen) if is_dataclass(seen) and not isinstance(seen, type) else {},
    )
