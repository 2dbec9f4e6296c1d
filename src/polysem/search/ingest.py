"""Reading a collection into batches for an index: what is new or changed is encoded, the rest keeps its vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polysem.data.collection import Collection, Item, Skipped, caption_id, load_features
from polysem.data.images import read_exif
from polysem.data.video import is_video
from polysem.errors import InputError, PolysemError
from polysem.malloc_tuning import keep_freed_memory
from polysem.models import Model
from polysem.models.embedding import embed, vectors
from polysem.models.items import FeatureItems, ImageItems, Items, StoredItems, open_store
from polysem.models.tower import Inputs, Tower
from polysem.models.video import embed_with_frames, has_frames
from polysem.search.encoder import normalise_sets
from polysem.search.store import Entry, Side, VectorBatch
from polysem.search.store.entries import as_rows

CHUNK = 1024
"""Items read, encoded and committed together: what a crash can cost."""
_VIDEOS = 64
"""The same of videos, whose frames are held too."""
_CONTENT, _REST = 40, 24
"""Digits of each part of a hash: 160 bits tell contents apart, 96 what else is known of an item."""
_BATCH = 16
_BLOCK = 4
"""Images that one thread encodes together: few, so that a network's activations stay in the processor's cache."""


class IndexedItems(Protocol):
    """What ingesting needs to know of the index: part of a `Backend`."""

    def hashes(self, ids: Iterable[str], side: Side) -> dict[str, str | None]: ...

    def intact_vectors(self, side: Side, ids: Iterable[str]) -> dict[str, NDArray[Any]]: ...

    def frames(self, side: Side, ids: Sequence[str]) -> dict[str, NDArray[Any]]: ...


@dataclass(frozen=True)
class Chunk:
    """A part of a collection, ready to be committed: its batches, the captions of its images, and counts."""

    batches: list[VectorBatch]
    captions: dict[str, set[str]]
    """For each image that came with captions, their ids: others are stale. Without any, those indexed are kept."""
    unchanged: int
    skipped: list[Skipped]
    items: int
    reused: int
    """Items of the batches that keep their vectors, because their content is the same."""


class CollectionEncoder:
    """Reads collections with one model.

    Args:
        model: encodes what has no features.
        features: a store of image features made earlier.
        text_features: the same for captions.
        frames: whether to embed the frames of videos too.
    """

    def __init__(
        self, model: Model, features: str | Path | None, text_features: str | Path | None, frames: bool = True
    ) -> None:
        self._model = model
        self._frames = frames and has_frames(model.image)
        self._store = open_store(features, model.image)
        self._text_store = open_store(text_features, model.text)

    def read(self, collection: Collection, index: IndexedItems, captions: bool = True) -> Iterator[Chunk]:
        """Chunk by chunk. What cannot be read or stored is skipped and named; what has not changed is not encoded."""
        self._check_content(collection)
        with (
            keep_freed_memory(),
            ThreadPoolExecutor(max(2, torch.get_num_threads()), thread_name_prefix="pictures") as readers,
        ):
            chunk = _VIDEOS if self._frames else CHUNK
            for start in range(0, len(collection), chunk):
                items = [collection[i] for i in range(start, min(start + chunk, len(collection)))]
                yield self._read_chunk(items, index, readers, captions)

    def _check_content(self, collection: Collection) -> None:
        encoder, content = self._model.image.encoder, collection.content
        if self._store is not None or content == "features":
            return
        if encoder.takes == "features":
            raise InputError(
                f"This model reads features of width {encoder.config.get('input_dim')}, and {collection.name} holds "
                f"{content}. Extract the features it was trained on with `polysem features`, and give --features."
            )
        if content == "videos" and encoder.kind != "video":
            raise InputError(
                f"This model reads images, and {collection.name} holds videos. Train one that reads videos, e.g. "
                "`polysem train small-vse-infty-video`, or index images."
            )

    def _read_chunk(self, items: list[Item], index: IndexedItems, readers: ThreadPoolExecutor, captions: bool) -> Chunk:
        valid: list[tuple[Item, Entry]] = []
        skipped: list[Skipped] = []
        for item, entry in zip(items, readers.map(self._make_entry, items), strict=True):
            if isinstance(entry, Entry):
                valid.append((item, entry))
            else:
                skipped.append(Skipped(item.id, str(entry)))
        hashes = index.hashes([item.id for item, _ in valid], "image")
        changed = [(item, entry) for item, entry in valid if hashes.get(item.id) != entry.hash]
        images = _reuse_vectors("image", [entry for _, entry in changed], hashes, index, self._frames)
        reused = {entry.id for entry in images.entries}
        count = len(reused)
        fresh = [(item, entry) for item, entry in changed if item.id not in reused]
        images = _concatenate(images, self._encode_images(fresh, skipped))
        unreadable = {each.what for each in skipped}
        caption_ids: dict[str, set[str]] = {}
        texts: list[Entry] = []
        for item, entry in valid:
            if item.captions and captions and item.id not in unreadable:
                own = _make_captions(item, entry)
                caption_ids[item.id] = {each.id for each in own}
                problems = [_find_problem(each) for each in own]
                texts += [each for each, why in zip(own, problems, strict=True) if why is None]
                skipped += [
                    Skipped(each.id, str(why)) for each, why in zip(own, problems, strict=True) if why is not None
                ]
        hashes = index.hashes([each.id for each in texts], "text")
        new = [each for each in texts if hashes.get(each.id) != each.hash]
        captions_batch = _reuse_vectors("text", new, hashes, index, frames=False)
        reused = {each.id for each in captions_batch.entries}
        count += len(reused)
        if unencoded := [each for each in new if each.id not in reused]:
            encoded = VectorBatch("text", unencoded, self._as_units(self._encode_texts(unencoded)))
            captions_batch = _concatenate(captions_batch, encoded)
        unchanged = len(valid) - len(changed) + len(texts) - len(new)
        batches = [batch for batch in (images, captions_batch) if batch.entries]
        return Chunk(batches, caption_ids, unchanged, skipped, len(items), count)

    def _make_entry(self, item: Item) -> Entry | InputError:
        """An item without its vectors, or why it cannot be stored."""
        path = item.media.path
        exif = {} if item.media.is_features or is_video(path) else read_exif(path)
        metadata = {**exif, **item.metadata, **({"split": item.split} if item.split else {})}
        caption = item.captions[0] if item.captions else None
        entry = Entry(item.id, str(path.absolute()), caption, metadata, item.labels)
        return _find_problem(entry) or replace(entry, hash=hash_entry(entry, self._hash_content(item)))

    def _hash_content(self, item: Item) -> bytes:
        """sha256 of what is encoded; empty if it cannot be read."""
        try:
            if self._store is not None:
                return _sha256(bytes(self._store[item.id].tobytes()))
            if item.media.is_features:
                return _sha256(np.ascontiguousarray(load_features(item.media)).tobytes())
            with item.media.path.open("rb") as file:  # a video may be larger than the memory
                return hashlib.file_digest(file, "sha256").digest()
        except (OSError, PolysemError):  # reading it to encode it says what is wrong
            return b""

    def _encode_images(self, changed: list[tuple[Item, Entry]], skipped: list[Skipped]) -> VectorBatch:
        nothing = np.empty((0, self._model.set_sizes[0], self._model.dim), np.float32)
        if not changed:
            return VectorBatch("image", [], nothing, frames=[])
        unreadable: set[int] = set()

        def skip(row: int, error: InputError) -> None:
            unreadable.add(row)
            skipped.append(Skipped(changed[row][0].id, str(error)))

        items = self._items([item for item, _ in changed])
        columns = embed(
            self._model.image,
            items,
            max(_BATCH, 2 * items.images_per_item),
            _embed_with_frames if self._frames else vectors,
            block=None if self._frames else _BLOCK,
            on_skip=skip,
        )
        entries = [entry for row, (_, entry) in enumerate(changed) if row not in unreadable]
        sets = self._as_units(columns[0].numpy() if columns else nothing)
        return VectorBatch("image", entries, sets, frames=columns[1] if len(columns) > 1 else [])

    def _items(self, items: list[Item]) -> Items[Any]:
        if self._store is not None:
            return StoredItems(self._store, [item.id for item in items], complete=False)
        if all(item.media.is_features for item in items):
            return FeatureItems([item.media for item in items])
        return ImageItems(self._model.image.encoder, [item.media.path for item in items])

    def _as_units(self, sets: NDArray[np.float32]) -> NDArray[np.float32]:
        return normalise_sets(sets, self._model.similarity.config)

    def _encode_texts(self, entries: list[Entry]) -> NDArray[np.float32]:
        if self._text_store is None:
            sets: NDArray[np.float32] = self._model.encode_texts([str(each.caption) for each in entries]).numpy()
        else:
            stored = StoredItems(self._text_store, [each.id for each in entries])
            sets = embed(self._model.text, stored, 4 * _BATCH)[0].numpy()
        return sets


def _make_captions(item: Item, image: Entry) -> list[Entry]:
    """Captions as items, called id#number, as in stores of caption features."""
    captions = []
    for number, text in enumerate(item.captions):
        entry = Entry(caption_id(item.id, number), image.path, text, {**image.metadata, "item": item.id}, item.labels)
        captions.append(replace(entry, hash=hash_entry(entry, _sha256(text.encode(errors="surrogatepass")))))
    return captions


def _find_problem(entry: Entry) -> InputError | None:
    """Why it cannot be stored; None if it can."""
    try:
        list(as_rows([entry]))
    except InputError as error:
        return error
    return None


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _embed_with_frames(tower: Tower, inputs: Inputs) -> tuple[Tensor, list[NDArray[np.float16] | None]]:
    """The sets, and those of the frames; None for a single frame, which has no moments."""
    sets, frames = embed_with_frames(tower, inputs)
    return sets, [each.half().cpu().numpy() if len(each) > 1 else None for each in frames]


def hash_entry(entry: Entry, content: bytes) -> str:
    """The hash of an item: of its content, and of its path, caption, metadata and labels.

    content: sha256 of what is encoded, empty where it cannot be read.
    """
    rest = repr((entry.path, entry.caption, sorted(entry.metadata.items(), key=str), tuple(entry.labels)))
    digest = hashlib.sha256(rest.encode(errors="surrogatepass")).hexdigest()
    return f"{content.hex()[:_CONTENT]}.{digest[:_REST]}"


def _has_same_content(one: str | None, other: str | None) -> bool:
    """Whether two hashes are of the same content."""
    content = (one or "").partition(".")[0]
    return len(content) == _CONTENT and content == (other or "").partition(".")[0]


def _reuse_vectors(
    side: Side, entries: Iterable[Entry], hashes: Mapping[str, str | None], index: IndexedItems, frames: bool
) -> VectorBatch:
    """Those of these entries whose content is indexed already, with the vectors it has there.

    hashes: of the indexed items by id. frames: whether the items are videos, whose frames are needed too.
    """
    same = [entry for entry in entries if _has_same_content(entry.hash, hashes.get(entry.id))]
    sets = index.intact_vectors(side, [entry.id for entry in same]) if same else {}
    own = index.frames(side, list(sets)) if frames else {}
    reusable = [entry for entry in same if entry.id in sets and (not frames or entry.id in own)]
    vectors = np.array([sets[entry.id] for entry in reusable])
    return VectorBatch(side, reusable, vectors, frames=[own[entry.id] for entry in reusable] if frames else ())


def _concatenate(one: VectorBatch, other: VectorBatch) -> VectorBatch:
    """Two batches of one side as one, which becomes one segment."""
    if not one.entries or not other.entries:
        return one if one.entries else other
    vectors = np.concatenate([one.vectors, other.vectors])
    return VectorBatch(one.side, [*one.entries, *other.entries], vectors, frames=[*one.frames, *other.frames])
