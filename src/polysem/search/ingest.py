"""A collection read for an index: who its items are, what has changed, and the vectors of what has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polysem.data.collection import Collection, Item, Skipped, load_features
from polysem.data.images import read_exif
from polysem.data.video import is_video
from polysem.errors import InputError, PolysemError
from polysem.malloc_tuning import keep_freed_memory
from polysem.models import Model
from polysem.models.embedding import embed, vectors
from polysem.models.items import FeatureItems, ImageItems, Items, StoredItems, open_store
from polysem.models.tower import Inputs, Tower
from polysem.models.video import embed_with_frames, has_frames
from polysem.search.content_hash import Known, hash_of, joined, reused
from polysem.search.store import Batch, Entry
from polysem.search.store.entries import as_rows
from polysem.search.vector_checks import as_units

CHUNK = 1024
"""Items read, encoded and committed together: what a crash can cost."""
_VIDEOS = 64
"""The same of videos, whose frames are held too."""
_BATCH = 16
_BLOCK = 4
"""Pictures that one thread encodes together: few, so that a network's activations stay in the processor's cache."""


@dataclass(frozen=True)
class Read:
    """A chunk of a collection: batches to add, texts that are no longer captions of its images, and the rest."""

    batches: list[Batch]
    captions: dict[str, set[str]]
    """For each image that came with captions, their ids: others are old. Without any, those it has may be another's."""
    unchanged: int
    skipped: list[Skipped]
    items: int
    reused: int
    """Items that are in the batches with the vectors they had, because their content is the same."""


class Reader:
    """Reads collections with one model. features, text_features: stores of the encoders' outputs, made earlier.

    frames: of videos, make the sets of their frames too.
    """

    def __init__(
        self, model: Model, features: str | Path | None, text_features: str | Path | None, frames: bool = True
    ) -> None:
        self._model = model
        self._frames = frames and has_frames(model.image)
        self._store = open_store(features, model.image)
        self._text_store = open_store(text_features, model.text)

    def read(self, collection: Collection, known: Known, captions: bool = True) -> Iterator[Read]:
        """Chunk by chunk. What cannot be read or kept is left out and named; what has not changed is not encoded."""
        self._check(collection)
        with (
            keep_freed_memory(),
            ThreadPoolExecutor(max(2, torch.get_num_threads()), thread_name_prefix="pictures") as readers,
        ):
            chunk = _VIDEOS if self._frames else CHUNK
            for start in range(0, len(collection), chunk):
                items = [collection[i] for i in range(start, min(start + chunk, len(collection)))]
                yield self._chunk(items, known, readers, captions)

    def _check(self, collection: Collection) -> None:
        encoder, holds = self._model.image.encoder, collection.content
        if self._store is not None or holds == "features":
            return
        if encoder.takes == "features":
            raise InputError(
                f"This model reads features of width {encoder.config.get('input_dim')}, and {collection.name} holds "
                f"{holds}. Extract the features it was trained on with `polysem features`, and give --features."
            )
        if holds == "videos" and encoder.kind != "video":
            raise InputError(
                f"This model reads pictures, and {collection.name} holds videos. Train one that reads them, e.g. "
                "`polysem train small-vse-infty-video`, or index pictures."
            )

    def _chunk(self, items: list[Item], known: Known, readers: ThreadPoolExecutor, captions: bool) -> Read:
        good: list[tuple[Item, Entry]] = []
        skipped: list[Skipped] = []
        for item, entry in zip(items, readers.map(self._facts, items), strict=True):
            if isinstance(entry, Entry):
                good.append((item, entry))
            else:
                skipped.append(Skipped(item.id, str(entry)))
        there = known.hashes([item.id for item, _ in good], "image")
        changed = [(item, entry) for item, entry in good if there.get(item.id) != entry.hash]
        same = reused("image", [entry for _, entry in changed], there, known, self._frames)
        kept = {entry.id for entry in same.entries}
        fresh = [(item, entry) for item, entry in changed if item.id not in kept]
        images = joined(same, self._images(fresh, skipped))
        unreadable = {each.what for each in skipped}
        now: dict[str, set[str]] = {}
        texts: list[Entry] = []
        for item, entry in good:
            if item.captions and captions and item.id not in unreadable:
                own = _captions(item, entry)
                now[item.id] = {each.id for each in own}
                wrong = [(each.id, _wrong(each)) for each in own]
                texts += [each for each, (_, why) in zip(own, wrong, strict=True) if why is None]
                skipped += [Skipped(name, str(why)) for name, why in wrong if why is not None]
        said = known.hashes([each.id for each in texts], "text")
        new = [each for each in texts if said.get(each.id) != each.hash]
        old = reused("text", new, said, known, frames=False)
        kept = {each.id for each in old.entries}
        if unread := [each for each in new if each.id not in kept]:
            old = joined(old, Batch("text", unread, self._comparable(self._texts(unread))))
        unchanged = len(good) - len(changed) + len(texts) - len(new)
        count = len(same.entries) + len(kept)
        batches = [batch for batch in (images, old) if batch.entries]
        return Read(batches, now, unchanged, skipped, len(items), count)

    def _facts(self, item: Item) -> Entry | InputError:
        """All but the vectors, or why an index cannot keep it.

        The hash covers what is encoded and what is said of it, so a new label counts too.
        """
        path = item.media.path
        facts = {} if item.media.is_features or is_video(path) else read_exif(path)
        metadata = {**facts, **item.metadata, **({"split": item.split} if item.split else {})}
        caption = item.captions[0] if item.captions else None
        entry = Entry(item.id, str(path.absolute()), caption, metadata, item.labels)
        return _wrong(entry) or replace(entry, hash=hash_of(entry, self._content(item)))

    def _content(self, item: Item) -> bytes:
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

    def _images(self, changed: list[tuple[Item, Entry]], skipped: list[Skipped]) -> Batch:
        nothing = np.empty((0, self._model.set_sizes[0], self._model.dim), np.float32)
        if not changed:
            return Batch("image", [], nothing, frames=[])
        unreadable: set[int] = set()

        def skip(row: int, error: InputError) -> None:
            unreadable.add(row)
            skipped.append(Skipped(changed[row][0].id, str(error)))

        items = self._items([item for item, _ in changed])
        columns = embed(
            self._model.image,
            items,
            max(_BATCH, 2 * items.images_per_item),
            _vectors_and_frames if self._frames else vectors,
            block=None if self._frames else _BLOCK,
            on_skip=skip,
        )
        entries = [entry for row, (_, entry) in enumerate(changed) if row not in unreadable]
        sets = self._comparable(columns[0].numpy() if columns else nothing)
        return Batch("image", entries, sets, frames=columns[1] if len(columns) > 1 else [])

    def _items(self, items: list[Item]) -> Items[Any]:
        if self._store is not None:
            return StoredItems(self._store, [item.id for item in items], complete=False)
        if all(item.media.is_features for item in items):
            return FeatureItems([item.media for item in items])
        return ImageItems(self._model.image.encoder, [item.media.path for item in items])

    def _comparable(self, sets: NDArray[np.float32]) -> NDArray[np.float32]:
        return as_units(sets, self._model.similarity.config)

    def _texts(self, entries: list[Entry]) -> NDArray[np.float32]:
        if self._text_store is None:
            sets: NDArray[np.float32] = self._model.encode_texts([str(each.caption) for each in entries]).numpy()
        else:
            stored = StoredItems(self._text_store, [each.id for each in entries])
            sets = embed(self._model.text, stored, 4 * _BATCH)[0].numpy()
        return sets


def _captions(item: Item, image: Entry) -> list[Entry]:
    """Named after their image and their number: what `FeatureStore`s of captions call them too."""
    found = []
    for number, text in enumerate(item.captions):
        entry = Entry(f"{item.id}#{number}", image.path, text, {**image.metadata, "item": item.id}, item.labels)
        found.append(replace(entry, hash=hash_of(entry, _sha256(text.encode(errors="surrogatepass")))))
    return found


def _wrong(entry: Entry) -> InputError | None:
    """Why no index can keep it."""
    try:
        list(as_rows([entry]))
    except InputError as error:
        return error
    return None


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _vectors_and_frames(tower: Tower, inputs: Inputs) -> tuple[Tensor, list[NDArray[np.float16] | None]]:
    """The sets, and those of the frames; None for a single frame, which is no moment of anything."""
    sets, frames = embed_with_frames(tower, inputs)
    return sets, [each.half().cpu().numpy() if len(each) > 1 else None for each in frames]
