"""The index: sets of images and texts that can be added, removed and searched, in a folder or in Milvus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from polysem._deprecated import renamed_attribute, warn_renamed
from polysem.data.collection import Collection
from polysem.data.readers import open_collection
from polysem.errors import InputError, PolysemError, kind
from polysem.models import Model, load
from polysem.models.video import has_frames
from polysem.progress import Progress
from polysem.search import ingest
from polysem.search import query as query_steps
from polysem.search.backend import CANDIDATES, Backend, Mode, create_backend, open_backend
from polysem.search.encoder import QueryEncoder, make_manifest
from polysem.search.filters import Filter, parse
from polysem.search.query import THRESHOLD, QueryOptions
from polysem.search.results import AddReport, IdConflict, IndexStats, SearchResults, VerifyReport
from polysem.search.store import CompactReport, IndexedItem, Manifest, Side, VectorBatch
from polysem.search.store.entries import SIDES, Dtype, is_unicode
from polysem.search.verify import AUDIT, SAMPLE, verify_index

_CREDITS = "credits"
"""The name of the stored value that says whom to name where items are shown."""
_NO_FRAMES = "Milvus stores no frames of videos: they are found without the moment. For that, index in a folder."
PathName = str | Path


class Index:
    """An index of sets: crash-safe, incremental, and searched exactly.

    Any number of processes may read an index while one writes. Several threads may search one `Index`.
    With a model: `Index.create("my-index", model="runs/dive").add("photos")`; with vectors made elsewhere:

    Example:
        >>> import tempfile
        >>> from polysem.search import Entry, Index, Manifest, VectorBatch
        >>> manifest = Manifest("my vectors", sets={"image": 1}, dim=2, similarity={"name": "cosine"})
        >>> batch = VectorBatch("image", [Entry("sun"), Entry("moon")], np.float32([[[1, 0]], [[0, 1]]]))
        >>> with Index.create(tempfile.mkdtemp(), manifest) as index:
        ...     index.add(batch).new, index.search(vectors=np.float32([[0.6, 0.8]]), k=1).ids
        (2, ['moon'])
    """

    def __init__(self, place: PathName, backend: Backend, model: Model | PathName | None = None) -> None:
        self.place, self._backend = str(place), backend
        self.manifest: Manifest = backend.manifest
        self._encoder = QueryEncoder(self.manifest, model)

    @classmethod
    def create(
        cls, place: PathName, model: Model | Manifest | PathName, *, store: str | None = None, dtype: Dtype = "float32"
    ) -> Self:
        """Create an empty index and open it for writing.

        Args:
            place: the folder.
            model: a model or its folder; or a `Manifest`, for vectors made elsewhere.
            store: an address such as milvus+http://localhost:19530/photos to keep it there; `place` then points to it.
            dtype: float16 takes half the space, and scores are those of the rounded vectors.
        """
        if isinstance(model, Manifest):
            return cls(place, create_backend(place, model, store))
        loaded = load(model) if isinstance(model, PathName) else model
        if not isinstance(loaded, Model):
            raise InputError(f"Index.create() takes a model, its folder or a Manifest, got {kind(model)}.")
        source = str(model) if isinstance(model, PathName) else ""
        source = str(Path(source).absolute()) if source and Path(source).exists() else source
        return cls(place, create_backend(place, make_manifest(loaded, source, dtype), store), loaded)

    @classmethod
    def open(cls, place: PathName, *, write: bool = False, model: Model | PathName | None = None) -> Self:
        """Open an index.

        The model is loaded when a query first needs it, and refused if it is not the one that made the index.

        Args:
            place: the folder, or the address of an index in Milvus.
            write: whether it may be changed; one process at a time.
            model: the model or its folder; by default the folder it was in when the index was created.

        Example:
            >>> import tempfile
            >>> folder = tempfile.mkdtemp()
            >>> Index.create(folder, Manifest("my vectors", sets={"image": 1}, dim=8)).close()
            >>> Index.open(folder).manifest.dim
            8
        """
        return cls(place, open_backend(place, write), model)

    @classmethod
    def find_model(cls, place: PathName) -> str | None:
        """The name or folder of the model that made the index of a place; None where there is no index, or no name."""
        try:
            with cls.open(place) as index:
                return index.manifest.model or None
        except PolysemError:
            return None

    @property
    def model(self) -> Model:
        return self._encoder.model

    def add(
        self,
        source: PathName | Collection | VectorBatch,
        *,
        captions: bool = True,
        features: PathName | None = None,
        text_features: PathName | None = None,
        prefix: str = "",
        replace: bool = True,
        progress: Progress | None = None,
        replacing: bool | None = None,
    ) -> AddReport:
        """Add a collection, or what `polysem data check` can read, or a `VectorBatch` of vectors made elsewhere.

        Images go to the side "image"; with `captions` their captions go to the side "text", as id#0, id#1 and so on.
        An id that is indexed is replaced if its content has changed; if only its path, labels or metadata have, it
        keeps its vectors. Captions that its item no longer has are removed, unless it comes without any. What cannot be
        stored is skipped and named. It commits chunk by chunk: an interrupted call can be repeated, and goes on there.

        Args:
            features, text_features: stores of features of images and of captions made earlier, instead of encoding.
            prefix: put before the ids of the items.
            replace (formerly `replacing`): whether an item may take the id of a different file that still exists, as
                1.jpg of another folder (the report names it); if not, nothing is added and an error says so.
            progress: called with the stage, how many are done, and of how many.

        Example:
            >>> import tempfile; from polysem.search import Entry
            >>> index = Index.create(tempfile.mkdtemp(), Manifest("mine", {"text": 1}, 2, {"name": "cosine"}))
            >>> batch = VectorBatch("text", [Entry("a", caption="a dog", labels=["animal"])], np.float32([[[1, 0]]]))
            >>> index.add(batch).new, index.add(batch).replaced
            (1, 1)
        """
        backend = self._backend
        if replacing is not None:
            warn_renamed("Index.add(replacing=…)", "replace")
            replace = replacing
        if isinstance(source, VectorBatch):
            added = backend.add(source)
            backend.optimize(progress)
            return AddReport(added.new, added.replaced, 0, 0)
        collection = source if isinstance(source, Collection) else open_collection(source)
        if prefix:
            collection = ingest.add_prefix(collection, prefix, features, text_features)
        conflicts = list(self.find_conflicts(collection))
        if not replace:
            ingest.refuse_conflicts(conflicts)
        encoder = ingest.CollectionEncoder(self.model, features, text_features, frames=backend.keeps_frames)
        counts: Counter[str] = Counter()
        skipped, credited = list(collection.skipped), backend.read_value(_CREDITS) or []
        if collection.credit and collection.credit not in credited:
            backend.write_value(_CREDITS, [*credited, collection.credit])
        for chunk in encoder.read(collection, backend, captions):
            counts.update(backend.add(*chunk.batches)._asdict())
            stale = set(backend.caption_ids(chunk.captions)) - set().union(*chunk.captions.values())
            counts["removed"] += backend.remove(stale, "text") if stale else 0
            counts.update(chunk.counts)
            skipped += chunk.skipped
            if progress is not None:
                progress("indexing", counts["read"], len(collection))
        backend.optimize(progress)
        remark = _NO_FRAMES if has_frames(self.model.image) and not backend.keeps_frames else ""
        new, replaced, unchanged, removed = (counts[name] for name in ("new", "replaced", "unchanged", "removed"))
        return AddReport(new, replaced, unchanged, removed, skipped, remark, counts["reused"], conflicts)

    def find_conflicts(self, *collections: Collection) -> Iterator[IdConflict]:
        """Items that would take the id of a different file, of the index or of an earlier collection."""
        return ingest.find_conflicts(collections, self._backend)

    clashes = renamed_attribute("clashes", "find_conflicts")

    def remove(self, ids: Iterable[str], side: Side | None = None) -> int:
        """Remove items by id, on one side or both, and the captions that came with an image; how many there were."""
        if isinstance(ids, str):
            raise InputError(f"Give a list of ids, got the text {ids!r}.")
        valid = [key for key in ids if is_unicode(key)]
        return self._backend.remove(valid, side, texts=() if side == "text" else self._backend.caption_ids(valid))

    def remove_where(self, where: str | Filter) -> int:
        """Remove every item that passes the filter, and the captions that came with an image."""
        condition = parse(where) if isinstance(where, str) else where
        ids = {side: self._backend.matching_ids(side, condition) for side in SIDES if side in self.manifest.sets}
        images, texts = ids.get("image", []), ids.get("text", [])
        return self._backend.remove(images, "image", texts={*texts, *self._backend.caption_ids(images)})

    def compact(self, progress: Progress | None = None) -> CompactReport:
        """Free the space of removed items and merge small segments."""
        report = self._backend.compact()
        self._backend.optimize(progress)
        return report

    def search(
        self,
        query: str | None = None,
        *,
        image: PathName | Image.Image | None = None,
        item: str | None = None,
        item_side: Side | None = None,
        vectors: NDArray[Any] | None = None,
        vectors_side: Side | None = None,
        find: Side | None = None,
        k: int = 10,
        where: str | Filter | None = None,
        mode: Mode | None = None,
        candidates: int = CANDIDATES,
        relevant: bool | Literal["mark"] = False,
        dedupe: bool | float = False,
        hybrid: bool = False,
    ) -> SearchResults:
        """The k best items for one query: a text, an image or video, an item of the index by its id, or a set (L, D).

        All of a search reads one snapshot: what is committed meanwhile does not show. A result that is a video has the
        `moment` of it that matches the query best. Between a text and an image, a model that is calibrated to tell
        (SigLIP) also gives the probability that they `match`.

        Args:
            query, image, item, vectors: what to search for, one of them; an item is left out of the results.
            item_side: the side of the item; by default the image, where both sides hold its id.
            vectors_side: what `vectors` are of, "image" or "text".
            find: "image" or "text"; by default images, where there are any.
            k: how many results.
            where: a filter, e.g. "label = 'dog' and year > 2020".
            mode: "exact", or "fast" for the exact order of the `candidates` whose set means are closest.
            candidates: how many items the fast mode scores exactly.
            relevant: leave out what the query's own score distribution says is irrelevant, or "mark" it.
            dedupe: fold near-duplicates into the best of them; a number is the cosine from which items count as such.
            hybrid: rank by vectors and by the words of captions and ids (reciprocal-rank fusion). Needs a text query
                and an index in a folder; scores are then those of the fusion.

        Example:
            >>> import tempfile; from polysem.search import Entry
            >>> index = Index.create(tempfile.mkdtemp(), Manifest("mine", {"image": 1}, 2, {"name": "cosine"}))
            >>> entries = [Entry("a", metadata={"year": 1999}), Entry("b", metadata={"year": 2024})]
            >>> _ = index.add(VectorBatch("image", entries, np.float32([[[1, 0]], [[0.8, 0.6]]])))
            >>> index.search(vectors=np.float32([[1, 0]])).ids
            ['a', 'b']
            >>> index.search(item="a", where="year > 2000")[0].score.__round__(2)
            0.8
        """
        given = [value for value in (query, image, item, vectors) if value is not None]
        if len(given) != 1:
            raise InputError(f"Search for one thing: a text, an image, an item or vectors; got {len(given)} of these.")
        if item_side is not None and item is None:
            raise InputError("item_side is the side of an item: give an item as the query, or leave out item_side.")
        if hybrid and query is None:
            raise InputError("Hybrid search compares words: give a text as the query, or leave out hybrid.")
        query_side: Side | None = "text" if query is not None else "image" if image is not None else vectors_side
        given_options = {"k": k, "find": find, "mode": mode, "candidates": candidates, "relevant": relevant}
        words = query if hybrid else None
        options = self._options(where, dedupe, words=words, query_side=query_side, **given_options)
        if query is not None:
            encoded = self._encoder.encode_texts([query])[0]
        else:
            encoded = np.asarray(vectors) if image is None else self._encoder.encode_image(image)
        with self._backend.snapshot() as reader:
            if item is not None:
                known = reader.find([item], item_side) if not isinstance(item, str) or is_unicode(item) else []
                if not known:
                    what = f"{item_side or 'item'} {item!r}"
                    raise InputError(f"The index holds no {what}. Ids are the ones it was added with.")
                side = known[0].side
                options = replace(options, item=(side, item), query_side=side)
                encoded = reader.vectors(side, [item])[0]
            return query_steps.search(reader, encoded, options)

    def search_many(
        self,
        queries: Sequence[str] | NDArray[Any],
        *,
        find: Side | None = None,
        k: int = 10,
        where: str | Filter | None = None,
        mode: Mode | None = None,
        candidates: int = CANDIDATES,
        relevant: bool | Literal["mark"] = False,
        dedupe: bool | float = False,
    ) -> list[SearchResults]:
        """`search` for many queries on one snapshot: texts, or sets (Q, L, D).

        In exact mode on a folder the queries share the work of reading the items. For sets the items and scores are
        those of `search`, bit for bit; texts are encoded in batches, which may change their vectors by rounding. The
        seconds of a result are its share of the batch's. The other arguments are those of `search`.

        Example:
            >>> import tempfile; from polysem.search import Entry
            >>> index = Index.create(tempfile.mkdtemp(), Manifest("mine", {"image": 1}, 2, {"name": "cosine"}))
            >>> _ = index.add(VectorBatch("image", [Entry("a"), Entry("b")], np.float32([[[1, 0]], [[0, 1]]])))
            >>> [results.ids for results in index.search_many(np.float32([[[1, 0]], [[0, 1]]]), k=1)]
            [['a'], ['b']]
        """
        if isinstance(queries, str):
            raise InputError(f"search_many() takes a list of texts or an array (Q, L, D), got the text {queries!r}.")
        options = self._options(where, dedupe, k=k, find=find, mode=mode, candidates=candidates, relevant=relevant)
        options = options if isinstance(queries, np.ndarray) else replace(options, query_side="text")
        encoded = queries if isinstance(queries, np.ndarray) else self._encoder.encode_texts(queries)
        if not len(encoded):
            return []
        with self._backend.snapshot() as reader:
            return query_steps.search_many(reader, encoded, options)

    def _options(self, where: str | Filter | None, dedupe: bool | float, **options: Any) -> QueryOptions:
        condition = parse(where) if isinstance(where, str) else where
        threshold = THRESHOLD if dedupe is True else dedupe or None
        checked = QueryOptions(where=condition, dedupe=threshold, **options)
        checked.check(tuple(self._backend.modes))
        return checked

    def collect_files(self, paths: Iterable[PathName]) -> Collection:
        """These files as a collection, each once.

        A file that is indexed has the id, captions, labels and metadata it has there; a new one is called by its path
        as given, or by its absolute path where that is the id of another file.
        """
        return ingest.collect_files(self._backend, paths)

    pictures = renamed_attribute("pictures", "collect_files")

    def items(self, ids: Iterable[str], side: Side | None = None) -> list[IndexedItem]:
        """The items with these ids; unknown ids are left out."""
        return self._backend.find([key for key in ids if is_unicode(key)], side)

    def sample(self, side: Side, count: int, *, seed: int = 0) -> list[IndexedItem]:
        """Up to `count` random items of a side; the same ones for the same seed."""
        with self._backend.snapshot() as reader:
            return reader.find(reader.sample(side, count, seed=seed), side)

    def captions(self, image: str) -> list[IndexedItem]:
        """The texts that were added as captions of the image with this id."""
        with self._backend.snapshot() as reader:
            return reader.find(reader.caption_ids([image]), "text")

    def vectors(self, side: Side, ids: Sequence[str]) -> NDArray[Any]:
        """(n, K, D) sets of these ids, all of which must be indexed."""
        return self._backend.vectors(side, ids)

    def stats(self) -> IndexStats:
        """How large the index is, what made it, and the recall of the fast mode as last measured by `verify`."""
        with self._backend.snapshot() as reader:
            stats, measured, credited = reader.stats(), reader.read_value(AUDIT), reader.read_value(_CREDITS) or []
        changed = measured is not None and (stats.by_side, stats.change) != (measured["items"], measured.get("change"))
        size, modes = stats.bytes_per_item, self._backend.modes
        return IndexStats(*stats[:5], size, self.manifest, measured, modes, changed, stats.change, credited)

    def verify(self, *, sample: int = SAMPLE, progress: Progress | None = None) -> VerifyReport:
        """Check every checksum, and measure recall@10 of the fast mode against the exact one on a sample.

        The figure is stored beside the index where it was opened for writing.
        """
        return verify_index(self._backend, sample, progress)

    def close(self) -> None:
        """Close the files. Safe to call twice."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
