"""The index: sets of images and texts that can be added, removed and searched, in whatever place they are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from polysem.data.collection import Collection
from polysem.data.readers import open_collection
from polysem.errors import InputError, PolysemError, kind, unknown
from polysem.models import Model, load
from polysem.models.video import has_frames
from polysem.search import audit, duplicates, folding, moments, open_index
from polysem.search import id_conflicts as clashes
from polysem.search.backend import CANDIDATES, Backend, Mode, Ranked
from polysem.search.encoder import QueryEncoder, manifest_of
from polysem.search.filters import Filter, matches, parse
from polysem.search.ingest import Reader
from polysem.search.relevance import relevant as judge
from polysem.search.reports import AddReport, IndexStats, Verified
from polysem.search.results import Results
from polysem.search.single_files import pictures
from polysem.search.store import Batch, Compacted, Item, Manifest, Side
from polysem.search.store.entries import SIDES, is_unicode
from polysem.search.store.manifest import Dtype

Progress = Callable[[str, int, int], None]
"""Stage, done, of."""
BACKGROUND = 2000
"""Items drawn at random that a query is compared with to learn what an irrelevant score is."""
_CREDITS = "credits"
"""The name of the note that says whom to name where items are shown."""


class Index:
    """An index of sets.

        with Index.create("my-index", model="runs/dive") as index:
            index.add("photos")
        results = Index.open("my-index").search("a dog on a beach", k=5)

    Any number of processes may read an index while one writes. Several threads may search one `Index`.
    """

    def __init__(self, place: str | Path, backend: Backend, model: Model | str | Path | None = None) -> None:
        self.place, self._backend = str(place), backend
        self.manifest: Manifest = backend.manifest
        self._encoder = QueryEncoder(self.manifest, model)

    @classmethod
    def create(
        cls,
        place: str | Path,
        model: Model | Manifest | str | Path,
        *,
        store: str | None = None,
        dtype: Dtype = "float32",
    ) -> Self:
        """Make an empty index and open it for writing.

        model: a model or its folder; or a `Manifest`, for vectors made elsewhere. store: an address such as
        milvus+http://localhost:19530/photos to keep it there; `place` is then a folder that points to it.
        dtype: float16 takes half the space, and scores are those of the rounded vectors.
        """
        if isinstance(model, Manifest):
            return cls(place, open_index.create(place, model, store))
        made = load(model) if isinstance(model, (str, Path)) else model
        if not isinstance(made, Model):
            raise InputError(f"Index.create() takes a model, its folder or a Manifest, got {kind(model)}.")
        source = _source(model) if isinstance(model, (str, Path)) else ""
        return cls(place, open_index.create(place, manifest_of(made, source, dtype), store), made)

    @classmethod
    def open(cls, place: str | Path, *, write: bool = False, model: Model | str | Path | None = None) -> Self:
        """Open an index. model: where its model is now, or the loaded model; by default where it was at the time.

        The model is loaded when a query first needs it, and refused if it is not the one that made the index.
        """
        return cls(place, open_index.open_(place, write), model)

    @property
    def model(self) -> Model:
        return self._encoder.model

    # --------------------------------------------------------------------------------------------------- changing

    def add(
        self,
        source: str | Path | Collection | Batch,
        *,
        captions: bool = True,
        features: str | Path | None = None,
        text_features: str | Path | None = None,
        prefix: str = "",
        replacing: bool = True,
        progress: Progress | None = None,
    ) -> AddReport:
        """Add a collection, or whatever `polysem data check` can read, or a `Batch` of vectors made elsewhere.

        Pictures go to the side "image"; with `captions` their captions go to the side "text", as id#0, id#1 and so on.
        An id that is there is replaced if it has changed, else left as it is; if only its place has changed, or what is
        said of it, it keeps its vectors. Captions that its item no longer has are removed, unless it comes without any.
        Items that cannot be kept are left out and named in the report.
        prefix: put before the ids of the items. replacing: a picture may take the id of a different one whose file is
        still there, as 1.jpg of another folder, and the report names it; if not, nothing is added and an error says so.
        What is added is committed chunk by chunk: an interrupted call can be repeated, and goes on from there.
        """
        if isinstance(source, Batch):
            added = self._backend.add(source)
            self._backend.settle(progress)
            return AddReport(added.new, added.replaced, 0, 0)
        collection = source if isinstance(source, Collection) else open_collection(source)
        if prefix:
            if features is not None or text_features is not None:
                raise InputError(f"Stores of features know items by their own ids: leave out the prefix {prefix!r}.")
            collection = clashes.prefixed(collection, prefix)
        clashing = list(self.clashes(collection))
        if not replacing:
            clashes.refuse(clashing)
        reader = Reader(self.model, features, text_features, frames=self._backend.keeps_frames)
        new = replaced = unchanged = removed = reused = done = 0
        skipped = list(collection.skipped)
        named = self._backend.note(_CREDITS) or []
        if collection.credit and collection.credit not in named:
            self._backend.write_note(_CREDITS, [*named, collection.credit])
        for read in reader.read(collection, self._backend, captions):
            added = self._backend.add(*read.batches)
            stale = set(self._backend.captions_of(read.captions)) - set().union(*read.captions.values())
            removed += self._backend.remove(stale, "text") if stale else 0
            new, replaced = new + added.new, replaced + added.replaced
            unchanged, reused, done = unchanged + read.unchanged, reused + read.reused, done + read.items
            skipped += read.skipped
            if progress is not None:
                progress("indexing", done, len(collection))
        self._backend.settle(progress)
        remark = moments.REMARK if has_frames(self.model.image) and not self._backend.keeps_frames else ""
        return AddReport(new, replaced, unchanged, removed, skipped, remark, reused, clashing)

    def clashes(self, *collections: Collection) -> Iterator[clashes.Clash]:
        """Items that would take the id of a different picture, of the index or of a collection before."""
        return clashes.clashes(collections, lambda ids: self._backend.paths(ids, "image"))

    def remove(self, ids: Iterable[str], side: Side | None = None) -> int:
        """Remove items by id, on one side or both, and the captions that came with an image; how many there were."""
        if isinstance(ids, str):
            raise InputError(f"Give a list of ids, got the text {ids!r}.")
        wanted = [key for key in ids if is_unicode(key)]
        return self._backend.remove(wanted, side, texts=() if side == "text" else self._backend.captions_of(wanted))

    def remove_where(self, where: str | Filter) -> int:
        """Remove every item that passes the filter, and the captions that came with an image."""
        condition = parse(where) if isinstance(where, str) else where
        found = {side: self._backend.matching(side, condition) for side in SIDES if side in self.manifest.sets}
        images, texts = found.get("image", []), found.get("text", [])
        return self._backend.remove(images, "image", texts={*texts, *self._backend.captions_of(images)})

    def compact(self, progress: Progress | None = None) -> Compacted:
        """Give back the space of removed items and merge small segments."""
        done = self._backend.compact()
        self._backend.settle(progress)
        return done

    # -------------------------------------------------------------------------------------------------- searching

    def search(
        self,
        query: str | None = None,
        *,
        image: str | Path | Image.Image | None = None,
        item: str | None = None,
        vectors: NDArray[Any] | None = None,
        find: Side | None = None,
        k: int = 10,
        where: str | Filter | None = None,
        mode: Mode | None = None,
        candidates: int = CANDIDATES,
        relevant: bool | Literal["mark"] = False,
        dedupe: bool | float = False,
    ) -> Results:
        """The k best items for one query: a text, a picture or video, an item of the index by its id, or a set (L, D).

        find: "image" or "text"; by default images, where there are any. where: a filter, e.g. "label = 'dog' and year >
        2020". mode: "exact", or "fast" for the exact order of the `candidates` whose set means are closest.
        relevant: leave out what the query's own score distribution says is irrelevant, or "mark" it.
        dedupe: fold near-duplicates into the best of them; a number is the cosine from which items count as such.
        A result that is a video has the `moment` of it that matches the query best.
        """
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
            raise InputError(f"k must be at least 1 and a whole number, got {k!r}.")
        if candidates < 1:
            raise InputError(f"candidates must be at least 1, got {candidates!r}.")
        if mode is not None and mode not in self._backend.modes:
            raise unknown("mode of search", mode, self._backend.modes)
        condition = parse(where) if isinstance(where, str) else where
        sought, excluded = self._sought(query, image, item, vectors)
        start = time.perf_counter()
        side = self._target(find)
        of = self._backend.count(side, condition)
        alone = self._among(excluded, side, condition)

        def look(count: int) -> Ranked:
            return self._backend.search(side, sought, count, where=condition, mode=mode, candidates=candidates)

        if dedupe:
            threshold = duplicates.THRESHOLD if dedupe is True else dedupe
            seen = folding.folded(look, k, of, excluded, alone, threshold)
        else:
            seen = folding.plain(look, min(k + alone, max(of, 1)), excluded)
        found = [replace(result, rank=rank) for rank, result in enumerate(seen.results[:k], start=1)]
        cut = None
        if relevant:
            background = self._backend.background(side, sought, BACKGROUND, where=condition)
            cut = judge(np.array([result.score for result in found]), background, of)
            found = [replace(result, relevant=result.rank <= cut.count) for result in found]
            found = found if relevant == "mark" else found[: cut.count]
        found = moments.with_moments(self._backend, side, found, sought)
        used, seconds = mode or self._backend.modes[0], time.perf_counter() - start
        scored, unreadable = min(seen.scored, of - alone), seen.ranked.unreadable
        return Results(found, used, side, scored, of - alone, seconds, unreadable, cut, seen.stopped)

    def _sought(
        self,
        query: str | None,
        image: str | Path | Image.Image | None,
        item: str | None,
        vectors: NDArray[Any] | None,
    ) -> tuple[NDArray[Any], tuple[Side, str] | None]:
        """The query's set, and the item that it is, if it is one."""
        given = [value for value in (query, image, item, vectors) if value is not None]
        if len(given) != 1:
            raise InputError(f"Search for one thing: a text, an image, an item or vectors; got {len(given)} of these.")
        if query is not None:
            return self._encoder.text(query), None
        if image is not None:
            return self._encoder.image(image), None
        if item is not None:
            known = self._backend.find([item]) if not isinstance(item, str) or is_unicode(item) else []
            if not known:
                raise InputError(f"The index holds no item {item!r}. Ids are the ones it was added with.")
            side = known[0].side
            return self._backend.vectors(side, [item])[0], (side, item)
        return np.asarray(vectors), None

    def _target(self, find: Side | None) -> Side:
        if find is not None:
            if find not in SIDES:
                raise unknown("side of an index", find, SIDES)
            return find
        held = [side for side in SIDES if side in self.manifest.sets]
        return next((side for side in held if self._backend.holds(side)), held[0])

    def _among(self, item: tuple[Side, str] | None, side: Side, where: Filter | None) -> int:
        """1 if the item is one of those that are searched, else 0."""
        if item is None or item[0] != side:
            return 0
        return sum(
            where is None or matches(where, {**each._asdict(), "label": list(each.labels)})
            for each in self._backend.find([item[1]], side)
        )

    # ------------------------------------------------------------------------------------------------- looking at

    def pictures(self, paths: Iterable[str | Path]) -> Collection:
        """These files as a collection, each once.

        A file that the index knows has the id, captions, labels and metadata it has there; a new one is called by its
        path as given, or by its whole path where that is the id of another picture.
        """
        return pictures(self._backend, paths)

    def items(self, ids: Iterable[str], side: Side | None = None) -> list[Item]:
        """The items with these ids; those that are not there are left out."""
        return self._backend.find([key for key in ids if is_unicode(key)], side)

    def sample(self, side: Side, count: int, *, seed: int = 0) -> list[Item]:
        """Up to `count` items of a side, drawn at random; the same ones for the same seed."""
        return self._backend.find(self._backend.sample(side, count, seed=seed), side)

    def captions(self, image: str) -> list[Item]:
        """The texts that were added as captions of the image with this id."""
        return self._backend.find(self._backend.captions_of([image]), "text")

    def vectors(self, side: Side, ids: Sequence[str]) -> NDArray[Any]:
        """(n, K, D) sets of these ids, all of which must be there."""
        return self._backend.vectors(side, ids)

    def stats(self) -> IndexStats:
        """How large the index is, what made it, and the recall of the fast mode as last measured by `verify`."""
        found, measured = self._backend.stats(), self._backend.note(audit.NOTE)
        changed = measured is not None and audit.state(found) != (measured["items"], measured.get("change"))
        return IndexStats(
            *found[:5],
            found.bytes_per_item,
            self.manifest,
            measured,
            self._backend.modes,
            changed,
            found.change,
            self._backend.note(_CREDITS) or [],
        )

    def verify(self, *, sample: int = audit.SAMPLE, progress: Progress | None = None) -> Verified:
        """Check every checksum, and measure recall@10 of the fast mode against the exact one on a sample.

        The figure is kept beside the index where it was opened for writing.
        """
        found = self._backend.verify(progress)
        damage = self._backend.repair(found)
        lost: dict[str, list[str]] = {}
        for each in damage:
            lost.setdefault(each.segment, []).extend(self._backend.among(each))
        repaired = sorted({each.segment for each in found} - {each.segment for each in damage})
        try:
            measured = audit.measure(self._backend, sample, progress)
        except PolysemError as error:
            if not damage:
                raise
            return Verified(damage, lost, None, repaired, f"The fast mode could not be measured: {error}")
        remark = ""
        if measured is not None and self._backend.writable:
            try:
                self._backend.write_note(audit.NOTE, measured)
            except PolysemError as error:  # what was found is worth more than its being kept
                remark = f"The figures could not be kept: {error}"
        return Verified(damage, lost, measured, repaired, remark)

    def close(self) -> None:
        """Let go of the files. Safe to call twice."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


def _source(model: str | Path) -> str:
    """A folder as seen from anywhere, or a name as it is."""
    return str(Path(model).absolute()) if Path(model).exists() else str(model)
