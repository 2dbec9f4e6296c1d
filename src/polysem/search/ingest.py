"""Reading a collection into batches for an index: what is new or changed is encoded, the rest keeps its vectors.

Adding an id again replaces its item. That is right where the same file has changed or moved: the indexed file is gone,
or has the same content. Where both files exist and differ, as `1.jpg` of two folders, it is a conflict of ids.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polysem.data.collection import Collection, Item, Media, Skipped, caption_id, load_features
from polysem.data.images import read_exif
from polysem.data.video import VideoMetadata, is_video
from polysem.errors import InputError, PolysemError
from polysem.malloc_tuning import keep_freed_memory
from polysem.models import Model
from polysem.models.embedding import FeatureItems, ImageItems, Items, StoredItems, embed, embed_vectors, open_store
from polysem.models.tower import Inputs, Tower
from polysem.models.video import embed_with_frames, has_frames
from polysem.search.backend import IndexReader
from polysem.search.encoder import normalise_sets
from polysem.search.filters import And, Compare, Field, In
from polysem.search.results import IdConflict
from polysem.search.store import Entry, Side, VectorBatch
from polysem.search.store.entries import as_rows, is_unicode

CHUNK = 1024
"""Items read, encoded and committed together: what a crash can cost."""
_VIDEOS = 64
"""The same of videos, whose frames are held too."""
_CONTENT, _REST = 40, 24
"""Digits of each part of a hash: 160 bits tell contents apart, 96 what else is known of an item."""
_IDS = 1 << 13
"""Ids looked up at once."""
_BATCH = 16
_BLOCK = 4
"""Images that one thread encodes together: few, so that a network's activations stay in the processor's cache."""


@dataclass(frozen=True)
class Chunk:
    """A part of a collection, ready to be committed."""

    batches: list[VectorBatch] = field(default_factory=list)
    captions: dict[str, set[str]] = field(default_factory=dict)
    """For each image that came with captions, their ids: others are stale. Without any, those indexed are kept."""
    skipped: list[Skipped] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Items read; unchanged; reused: in a batch with the vectors they have, because their content is the same."""


class CollectionEncoder:
    """Encodes collections with one model.

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

    def read(self, collection: Collection, index: IndexReader, captions: bool = True) -> Iterator[Chunk]:
        """Chunk by chunk. What cannot be read or stored is skipped and named; what has not changed is not encoded."""
        self._check_content(collection)
        workers, step = max(2, torch.get_num_threads()), _VIDEOS if self._frames else CHUNK
        with keep_freed_memory(), ThreadPoolExecutor(workers, thread_name_prefix="pictures") as readers:
            for start in range(0, len(collection), step):
                items = [collection[i] for i in range(start, min(start + step, len(collection)))]
                yield self._read_chunk(items, index, readers, captions)

    def _check_content(self, collection: Collection) -> None:
        encoder, content = self._model.image.encoder, collection.content
        if self._store is not None or content == "features":
            return
        if encoder.takes == "features":
            width = encoder.config.get("input_dim")
            remedy = "Extract those it was trained on with `polysem features`, and give --features."
            raise InputError(f"This model reads features of width {width}, {collection.name} holds {content}. {remedy}")
        if content == "videos" and encoder.kind != "video":
            remedy = "Train one that reads videos, e.g. `polysem train small-vse-infty-video`, or index images."
            raise InputError(f"This model reads images, and {collection.name} holds videos. {remedy}")

    def _read_chunk(self, items: list[Item], index: IndexReader, readers: ThreadPoolExecutor, captions: bool) -> Chunk:
        chunk, by_id = Chunk(), {item.id: item for item in items}
        chunk.counts["read"] = len(items)

        def encode_images(entries: list[Entry]) -> VectorBatch:
            return self._encode_images(entries, [by_id[entry.id] for entry in entries], chunk.skipped)

        images = _keep_valid(readers.map(self._make_entry, items), chunk.skipped)
        self._add_batch(chunk, "image", images, index, encode_images)
        unreadable = {each.what for each in chunk.skipped}
        texts: list[Entry] = []
        for image in images:
            item = by_id[image.id]
            if item.captions and captions and item.id not in unreadable:
                own = [self._make_caption(item, image, number) for number in range(len(item.captions))]
                chunk.captions[item.id] = {each.id for each in own}
                texts += _keep_valid(((each, _find_problem(each)) for each in own), chunk.skipped)
        self._add_batch(chunk, "text", texts, index, self._encode_texts)
        return chunk

    def _add_batch(
        self,
        chunk: Chunk,
        side: Side,
        entries: list[Entry],
        index: IndexReader,
        encode: Callable[[list[Entry]], VectorBatch],
    ) -> None:
        """Put those of these entries that are new or changed into the chunk, as one batch, which becomes one segment.

        An entry whose content is indexed already keeps the vectors it has there; of a video the frames too.
        """
        hashes = index.hashes([entry.id for entry in entries], side)
        changed = [entry for entry in entries if hashes.get(entry.id) != entry.hash]
        same = [entry for entry in changed if _has_same_content(entry.hash, hashes.get(entry.id))]
        sets = index.intact_vectors(side, [entry.id for entry in same]) if same else {}
        frames: dict[str, Any] = {}
        if side == "image" and self._frames:
            frames = index.frames(side, list(sets))
            sets = {key: sets[key] for key in sets if key in frames}
        fresh = [entry for entry in changed if entry.id not in sets]
        chunk.counts.update(unchanged=len(entries) - len(changed), reused=len(sets))
        batch = encode(fresh) if fresh else None
        if sets:
            reused = [entry for entry in changed if entry.id in sets]
            arrays, kept = [sets[entry.id] for entry in reused], [frames.get(entry.id) for entry in reused]
            if batch is not None:
                reused, arrays, kept = [*reused, *batch.entries], [*arrays, *batch.vectors], [*kept, *batch.frames]
            batch = VectorBatch(side, reused, np.array(arrays), frames=kept if frames else ())
        if batch is not None and batch.entries:
            chunk.batches.append(batch)

    def _make_entry(self, item: Item) -> tuple[Entry, InputError | None]:
        """An item without its vectors, and why it cannot be stored, if so."""
        path = item.media.path
        exif = {} if item.media.is_features or is_video(path) else read_exif(path)
        metadata = {**exif, **item.metadata, **({"split": item.split} if item.split else {})}
        caption = item.captions[0] if item.captions else None
        entry = Entry(item.id, str(path.absolute()), caption, metadata, item.labels)
        problem = _find_problem(entry)
        return (entry, problem) if problem else (replace(entry, hash=hash_entry(entry, self._hash_content(item))), None)

    def _hash_content(self, item: Item) -> bytes:
        """sha256 of what is encoded; empty if it cannot be read."""
        try:
            if self._store is not None:
                return hashlib.sha256(self._store[item.id].tobytes()).digest()
            if item.media.is_features:
                return hashlib.sha256(load_features(item.media).tobytes()).digest()
            with item.media.path.open("rb") as file:  # a video may be larger than the memory
                return hashlib.file_digest(file, "sha256").digest()
        except (OSError, PolysemError):  # reading it to encode it says what is wrong
            return b""

    def _make_caption(self, item: Item, image: Entry, number: int) -> Entry:
        """A caption as an item, called id#number, as in stores of caption features."""
        text, metadata = item.captions[number], {**image.metadata, "item": item.id}
        entry = Entry(caption_id(item.id, number), image.path, text, metadata, item.labels)
        stored = self._text_store[entry.id] if self._text_store is not None and entry.id in self._text_store else None
        content = text.encode(errors="surrogatepass") if stored is None else stored.tobytes()
        return replace(entry, hash=hash_entry(entry, hashlib.sha256(content).digest()))

    def _encode_images(self, entries: list[Entry], given: list[Item], skipped: list[Skipped]) -> VectorBatch:
        unreadable: set[int] = set()

        def skip(row: int, error: InputError) -> None:
            unreadable.add(row)
            skipped.append(Skipped(entries[row].id, str(error)))

        items, make = self._items(given), _embed_with_frames if self._frames else embed_vectors
        batch, block = max(_BATCH, 2 * items.images_per_item), None if self._frames else _BLOCK
        columns = embed(self._model.image, items, batch, make, block=block, on_skip=skip)
        readable = [entry for row, entry in enumerate(entries) if row not in unreadable]
        sets = columns[0].numpy() if columns else np.empty((0, 1, 1), np.float32)
        sets = normalise_sets(sets, self._model.similarity.config)
        return VectorBatch("image", readable, sets, frames=columns[1] if len(columns) > 1 else [])

    def _items(self, items: list[Item]) -> Items[Any]:
        if self._store is not None:
            return StoredItems(self._store, [item.id for item in items], complete=False)
        if all(item.media.is_features for item in items):
            return FeatureItems([item.media for item in items])
        return ImageItems(self._model.image.encoder, [item.media.path for item in items])

    def _encode_texts(self, entries: list[Entry]) -> VectorBatch:
        if self._text_store is None:
            sets = self._model.encode_texts([str(each.caption) for each in entries])
        else:
            stored = StoredItems(self._text_store, [each.id for each in entries])
            sets = embed(self._model.text, stored, 4 * _BATCH)[0]
        return VectorBatch("text", entries, normalise_sets(sets.numpy(), self._model.similarity.config))


def _find_problem(entry: Entry) -> InputError | None:
    """Why it cannot be stored; None if it can."""
    try:
        list(as_rows([entry]))
    except InputError as error:
        return error
    return None


def _keep_valid(entries: Iterable[tuple[Entry, InputError | None]], skipped: list[Skipped]) -> list[Entry]:
    """Those without a problem; the others are put among the skipped."""
    pairs = list(entries)
    skipped += [Skipped(entry.id, str(problem)) for entry, problem in pairs if problem is not None]
    return [entry for entry, problem in pairs if problem is None]


def _embed_with_frames(tower: Tower, inputs: Inputs) -> tuple[Tensor, list[NDArray[np.float16] | None]]:
    """The sets, and those of the frames; None for a single frame, which has no moments."""
    sets, frames = embed_with_frames(tower, inputs)
    return sets, [each.half().cpu().numpy() if len(each) > 1 else None for each in frames]


def hash_entry(entry: Entry, content: bytes) -> str:
    """The hash of an item: of its content (sha256, empty where it cannot be read), and of all else known of it."""
    rest = repr((entry.path, entry.caption, sorted(entry.metadata.items(), key=str), tuple(entry.labels)))
    digest = hashlib.sha256(rest.encode(errors="surrogatepass")).hexdigest()
    return f"{content.hex()[:_CONTENT]}.{digest[:_REST]}"


def _has_same_content(one: str | None, other: str | None) -> bool:
    """Whether two hashes are of the same content."""
    content = (one or "").partition(".")[0]
    return len(content) == _CONTENT and content == (other or "").partition(".")[0]


def find_conflicts(collections: Sequence[Collection], index: IndexReader) -> Iterator[IdConflict]:
    """Every item that would replace a different file. Features have the ids of their data set, and may."""
    taken: dict[str, str] = {}
    for collection in collections:
        given = {item.id: str(item.media.path.absolute()) for item in collection if not item.media.is_features}
        ids = [key for key in given if is_unicode(key)]
        for start in range(0, len(ids), _IDS):
            some = ids[start : start + _IDS]
            indexed = index.paths(some, "image")
            for key in some:
                for there in (taken.get(key), indexed.get(key)):
                    if there is not None and _differ(there, given[key]):
                        yield IdConflict(key, there, given[key], collection.name)
                        break
        if len(collections) > 1:
            taken |= given


def refuse_conflicts(found: Iterable[IdConflict]) -> None:
    """Raise if there are any, with what to do about it."""
    if conflicts := list(found):
        key, there, given, source = conflicts[0]
        raise InputError(
            f"{source} has ids of other files ({len(conflicts):,}), e.g. {key!r:.80} is {there}, not {given}. "
            f"Nothing was added. Add {source} by itself with `--prefix {source}/`, which is put before its ids (then "
            "and whenever it is brought up to date), or give --replace to let its items replace the others."
        )


def add_prefix(collection: Collection, prefix: str, *stores: str | Path | None) -> Collection:
    """The collection with something before each id. Stores of features are refused: they have the ids without."""
    if any(store is not None for store in stores):
        raise InputError(f"Stores of features know items by their own ids: leave out the prefix {prefix!r}.")
    return replace(collection, items=[replace(item, id=prefix + item.id) for item in collection])


def _differ(there: str, given: str) -> bool:
    if there == given or not os.path.isfile(there):
        return False
    try:
        return not os.path.samefile(there, given) and not filecmp.cmp(there, given, shallow=False)
    except OSError:  # reading it to encode it says what is wrong
        return False


def collect_files(index: IndexReader, paths: Iterable[str | Path]) -> Collection:
    """Single files under the ids they are indexed with: see `Index.collect_files`."""
    once: dict[str, Path] = {}
    for path in paths:
        once.setdefault(os.path.abspath(path), Path(path))
    kind = "video" if once and all(map(is_video, once.values())) else "image"
    return Collection("pictures", kind, [_as_item(index, path) for path in once.values()])


def _as_item(index: IndexReader, path: Path) -> Item:
    media, name, whole = Media(path.parent, path.name), path.as_posix(), Path(os.path.abspath(path))
    facts = VideoMetadata(path) if is_video(path) else {}
    if not is_unicode(str(whole)):  # it cannot be indexed; adding it says why
        return Item(name, media, metadata=facts)
    # As it was added: with the ".." of a collection's path, or without.
    written = In(Field(("path",), built_in=True), (str(path.absolute()), str(whole)))
    same = And((written, Compare(Field(("side",), built_in=True), "=", "image")))
    known = index.find(index.sample("image", 1, where=same), "image")
    if not known:
        taken = bool(index.find([name], "image"))
        return Item(whole.as_posix() if taken else name, media, metadata=facts)
    (item,) = known
    if item.path is not None:
        media = Media(Path(item.path).parent, Path(item.path).name)
    texts = {text.id.rpartition("#")[2]: text.caption for text in index.find(index.caption_ids([item.id]), "text")}
    numbers = sorted(texts, key=lambda number: int(number) if number.isdecimal() else 0)  # id#0, id#1, … id#10
    captions = tuple(text for number in numbers if (text := texts[number]) is not None)
    if not captions and item.caption is not None:
        captions = (item.caption,)
    return Item(item.id, media, captions, tuple(item.labels), metadata={**item.metadata, **facts})
