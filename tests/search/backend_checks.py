"""What every place for an index must do: one set of checks for a folder, milvus-lite and a Milvus server.

A subclass gives a `place`, with `empty(manifest)` for a new or emptied index and `again(write)` to open the same index
once more.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import Any, ClassVar, Protocol

import numpy as np
import pytest

from polysem import similarity
from polysem.errors import InputError
from polysem.search.backend import Backend
from polysem.search.filters import matches, parse
from polysem.search.store import Entry, Manifest, SearchError, Side, VectorBatch
from search.engine.support import SMOOTH, SOFT, score, sets
from search.filters.random_filters import random_filter, random_item

DIM = 12
SETS = {"image": 4, "text": 3}
# What every element is alike: scores of these are equal to the last bit.
SAME = sets(1, 4, DIM, seed=99)[0]


def manifest(**changes: Any) -> Manifest:
    return Manifest(**{"fingerprint": "abc", "sets": SETS, "dim": DIM, "similarity": SMOOTH, **changes})


class Place(Protocol):
    def empty(self, wanted: Manifest) -> Backend: ...

    def again(self, write: bool = False) -> Backend: ...


def batch(ids: Iterable[str], side: Side = "image", seed: int = 0, **fields: Any) -> VectorBatch:
    entries = [Entry(each, **fields) for each in ids]
    return VectorBatch(side, entries, sets(len(entries), SETS[side], DIM, seed=seed))


def truth(query: Any, items: dict[str, Any], k: int) -> list[str]:
    """The best ids by the formula, in Python's floats; `items` in the order of adding."""
    scores = {key: score(query, vectors, SMOOTH) for key, vectors in items.items()}
    return sorted(scores, key=lambda key: -scores[key])[:k]


def numbered(count: int, seed: int = 0) -> tuple[VectorBatch, dict[str, Any]]:
    """Items with a year, a label and a set each; the sets by id."""
    vectors = sets(count, SETS["image"], DIM, seed=seed)
    entries = [
        Entry(
            f"i{n}", caption=f"number {n}", metadata={"year": 2000 + n % 30}, labels=["even" if n % 2 == 0 else "odd"]
        )
        for n in range(count)
    ]
    return VectorBatch("image", entries, vectors), {entry.id: own for entry, own in zip(entries, vectors, strict=True)}


class BackendChecks:
    filters: ClassVar[int] = 120

    @pytest.fixture
    def index(self, place: Place) -> Backend:
        return place.empty(manifest())

    def test_items_come_back_as_they_were_added(self, index: Backend) -> None:
        entry = Entry("x", "a/b.jpg", "a dog", {"year": 2020, "deep": {"list": [1, None, "é"]}}, ("dog", "beach"), "h1")
        before = time.time()
        assert index.add(VectorBatch("image", [entry], SAME[None])) == (1, 0)
        (item,) = index.find(["missing", "x"])
        assert (item.id, item.side, item.path, item.caption, item.hash) == ("x", "image", entry.path, "a dog", "h1")
        assert (item.metadata, item.labels) == (entry.metadata, ("dog", "beach"))
        assert before - 1 < item.added < time.time() + 1
        found = index.vectors("image", ["x"])
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, SAME[None])

    def test_paths_and_vectors_that_are_sound(self, index: Backend) -> None:
        given = batch(["a", "é b"], path="here/a.jpg")
        index.add(given, batch(["a"], "text"))
        assert index.paths(["a", "é b", "c"], "image") == {"a": "here/a.jpg", "é b": "here/a.jpg"}
        assert index.paths(["a"], "text") == {"a": None}
        found = index.intact_vectors("image", ["é b", "nobody", "é b", "a"])
        assert set(found) == {"a", "é b"}
        np.testing.assert_array_equal([found["a"], found["é b"]], given.vectors)
        assert index.intact_vectors("image", []) == index.intact_vectors("text", ["é b"]) == {}

    def test_sides_have_their_own_ids(self, index: Backend) -> None:
        index.add(batch(["1", "2"]), batch(["1"], "text"))
        assert [(item.id, item.side) for item in index.find(["2", "1"])] == [
            ("2", "image"),
            ("1", "image"),
            ("1", "text"),
        ]
        assert index.vectors("text", ["1"]).shape == (1, SETS["text"], DIM)
        assert index.remove(["1"], "text") == 1
        assert (index.count("image"), index.count("text")) == (2, 0)
        index.add(batch(["1"], "text"))
        assert index.remove(["1", "nobody", "1"]) == 2
        assert (index.count("image"), index.count("text")) == (1, 0)
        assert index.stats().by_side == {"image": 1, "text": 0}
        with pytest.raises(InputError, match="got the side 'video'"):
            index.count("video")  # type: ignore[arg-type]

    def test_adding_an_id_again_replaces_it(self, index: Backend) -> None:
        index.add(batch(["a", "b"], caption="old"))
        again = batch(["b", "c"], seed=5, caption="new", labels=["dog"])
        assert index.add(again) == (1, 1)
        assert index.count("image") == 3
        assert [item.caption for item in index.find(["a", "b", "c"])] == ["old", "new", "new"]
        np.testing.assert_array_equal(index.vectors("image", ["c", "b"]), again.vectors[::-1])
        assert index.count("image", parse("label = 'dog'")) == 2
        assert index.search("image", again.vectors[0], 1).items[0].id == "b"

    def test_exact_search_is_brute_force(self, index: Backend) -> None:
        given, items = numbered(60)
        index.add(given)
        index.remove(["i3", "i8"])
        left = {key: own for key, own in items.items() if key not in ("i3", "i8")}
        some = {f"i{n}": items[f"i{n}"] for n in range(60) if n % 2 and n % 30 > 9 and n != 3}
        where = parse("label = 'odd' and year > 2009")
        for query in sets(4, 3, DIM, seed=7):
            found = index.search("image", query, 7, mode="exact")
            assert [item.id for item in found.items] == truth(query, left, 7)
            expected = [score(query, items[item.id], SMOOTH) for item in found.items]
            np.testing.assert_allclose(found.scores, expected, rtol=0, atol=1e-12)
            np.testing.assert_array_equal(found.sets, [items[item.id] for item in found.items])
            assert found.unreadable == 0
            filtered = index.search("image", query, 7, mode="exact", where=where)
            assert [item.id for item in filtered.items] == truth(query, some, 7)

    def test_fast_search_scores_its_candidates_exactly(self, index: Backend) -> None:
        given, items = numbered(60)
        index.add(given)
        for query in sets(4, 3, DIM, seed=7):
            whole = index.search("image", query, 5, mode="fast", candidates=100)
            assert [item.id for item in whole.items] == truth(query, items, 5)
            few = index.search("image", query, 5, mode="fast", candidates=12)
            expected = [score(query, items[item.id], SMOOTH) for item in few.items]
            np.testing.assert_allclose(few.scores, expected, rtol=0, atol=1e-12)
            assert sorted(few.scores, reverse=True) == few.scores.tolist()
            assert len(few.items) == 5
            assert 5 <= few.scored < 60
            filtered = index.search("image", query, 5, mode="fast", candidates=12, where=parse("label = 'even'"))
            assert len(filtered.items) == 5
            assert {item.labels for item in filtered.items} == {("even",)}

    @pytest.mark.parametrize("mode", ["exact", "fast"])
    def test_equal_scores_come_in_the_order_of_adding(self, index: Backend, mode: Any) -> None:
        ids = [f"{n * 7 % 20}" for n in range(20)]
        for some in (ids[:12], ids[12:]):
            index.add(VectorBatch("image", [Entry(each) for each in some], np.repeat(SAME[None], len(some), 0)))
        index.add(VectorBatch("image", [Entry(ids[4])], SAME[None]))
        found = index.search("image", SAME, 20, mode=mode)
        assert len(set(found.scores.tolist())) == 1
        assert [item.id for item in found.items] == [*ids[:4], *ids[5:], ids[4]]

    @pytest.mark.parametrize("mode", ["exact", "fast"])
    def test_an_empty_index_and_more_wanted_than_there_is(self, index: Backend, mode: Any) -> None:
        nothing = index.search("image", SAME, 3, mode=mode)
        assert (list(nothing.items), nothing.scores.shape, nothing.scored) == ([], (0,), 0)
        assert nothing.sets.shape == (0, SETS["image"], DIM)
        assert index.add() == (0, 0)
        assert index.add(VectorBatch("image", [], np.empty((0, 4, DIM)))) == (0, 0)
        assert index.remove([]) == 0
        assert (index.find([]), index.hashes([], "image"), index.caption_ids([])) == ([], {}, [])
        assert index.sample("image", 5) == []
        assert index.vectors("image", []).shape == (0, SETS["image"], DIM)
        index.add(batch(["a", "b"]))
        assert len(index.search("image", SAME, 50_000, mode=mode).items) == 2
        assert len(index.search("image", SAME, 3, mode=mode, where=parse("caption contains 'x'")).items) == 0

    def test_what_no_search_can_use_is_refused(self, index: Backend) -> None:
        index.add(batch(["a"]))
        with pytest.raises(InputError, match="at least 1"):
            index.search("image", SAME, 0)
        with pytest.raises(InputError, match="same model"):
            index.search("image", SAME[:, :5], 3)
        with pytest.raises(InputError, match="NaN"):
            index.search("image", np.full((2, DIM), np.nan, np.float32), 3)
        with pytest.raises(InputError, match="nobody"):
            index.vectors("image", ["a", "nobody"])

    @pytest.mark.parametrize(
        ("entry", "vectors", "message"),
        [
            (Entry("a\0b"), SAME, "NUL"),
            (Entry("", labels=["x"]), SAME, "empty id"),
            (Entry("b", metadata={"x": float("nan")}), SAME, "must be JSON"),
            (Entry("b"), 0 * SAME, "zeros"),
            (Entry("b"), np.nan * SAME, "NaN"),
            (Entry("b"), 2 * SAME, "norm 2"),
            (Entry("b"), SAME[:2], "shape"),
            (Entry("ok"), SAME, "'ok' is given twice"),
        ],
    )
    def test_bad_input_adds_nothing(self, index: Backend, entry: Entry, vectors: Any, message: str) -> None:
        both = np.stack([SAME[: len(vectors)], vectors])
        with pytest.raises(InputError, match=message):
            index.add(batch(["good"]), VectorBatch("image", [Entry("ok"), entry], both))
        assert index.count("image") == 0

    def test_ids_of_any_unicode(self, index: Backend) -> None:
        ids = [
            "'; DROP TABLE items; --",
            'a"b',
            "new\nline",
            "🐕‍🦺",
            "é",
            "e\u0301",
            " ",
            "a\\b",
            "{x}",
            "%_",
            "x" * 5000,
        ]
        index.add(batch(ids))
        assert index.add(batch(ids, seed=1)) == (0, len(ids))
        assert [item.id for item in index.find(ids)] == ids
        for each in ids[:4]:
            quoted = each.replace("'", "''")
            assert index.sample("image", 99, where=parse(f"id = '{quoted}'")) == [each]
        assert index.remove(ids[1:]) == len(ids) - 1
        assert index.sample("image", 99) == ids[:1]

    def test_filters_mean_what_they_mean_everywhere(self, index: Backend) -> None:
        rng = random.Random(0)
        items = [random_item(rng, number) for number in range(60)]
        for place, some in enumerate((items[:30], items[30:])):
            for side in ("image", "text"):
                own = [item for item in some if item["side"] == side]
                entries = [
                    Entry(item["id"], item["path"], item["caption"], item["metadata"], item["label"]) for item in own
                ]
                index.add(VectorBatch(side, entries, sets(len(own), SETS[side], DIM)))  # type: ignore[arg-type]
            if place == 0:  # what is sealed and what is new are filtered by different code
                index.optimize()
        held = 0
        for _ in range(self.filters):
            text = random_filter(rng)
            side = rng.choice(["image", "text"])
            expected = {item["id"] for item in items if item["side"] == side and matches(text, item)}
            assert index.count(side, parse(text)) == len(expected), text  # type: ignore[arg-type]
            assert set(index.sample(side, 99, where=parse(text))) == expected, text  # type: ignore[arg-type]
            held += 0 < len(expected) < 25
        assert held > self.filters / 4  # they do tell items apart

    def test_fast_search_finds_what_a_filter_leaves(self, index: Backend) -> None:
        given, items = numbered(80)
        index.add(given)
        query = sets(1, 3, DIM, seed=3)[0]
        # The last holds for items that are far from the query, and only Python can tell.
        worst = truth(query, items, 80)[-1]
        for text in ("year >= 2028", "not label = 'even'", f"caption like 'NUMBER {worst[1:]}'"):
            passing = {
                key: own
                for entry, (key, own) in zip(given.entries, items.items(), strict=True)
                if matches(text, {"caption": entry.caption, "label": list(entry.labels), "metadata": entry.metadata})
            }
            assert passing
            found = index.search("image", query, 3, mode="fast", candidates=5, where=parse(text))
            assert len(found.items) == min(3, len(passing))
            assert {item.id for item in found.items} <= set(passing)

    def test_captions_are_found_by_their_image(self, index: Backend) -> None:
        index.add(batch(["a", 'it\'s \\ "b"']))
        for name in ("a", 'it\'s \\ "b"', "c"):
            index.add(batch([f"{name}#0", f"{name}#1"], "text", metadata={"item": name}))
        index.add(batch(["free"], "text"))
        assert sorted(index.caption_ids(['it\'s \\ "b"', "a", "d"])) == sorted(
            ["a#0", "a#1", 'it\'s \\ "b"#0', 'it\'s \\ "b"#1']
        )

    def test_hashes_tell_what_is_unchanged(self, index: Backend) -> None:
        index.add(batch(["a"], hash="h"), batch(["b"]), batch(["c"], "text", hash="t"))
        assert index.hashes(["a", "b", "c", "d"], "image") == {"a": "h", "b": None}

    def test_samples_are_random_and_repeatable(self, index: Backend) -> None:
        given, items = numbered(90)
        index.add(given)
        first = index.sample("image", 20, seed=1)
        assert len(set(first)) == 20
        assert set(first) <= set(items)
        assert index.sample("image", 20, seed=1) == first
        assert set(index.sample("image", 20, seed=2)) != set(first)
        assert sorted(index.sample("image", 500, seed=3)) == sorted(items)
        assert len(index.sample("image", 5, where=parse("label = 'odd'"), seed=4)) == 5
        query = sets(1, 3, DIM, seed=3)[0]
        scores = index.sample_scores("image", query, 20, seed=1)
        expected = [score(query, items[key], SMOOTH) for key in first]
        np.testing.assert_allclose(np.sort(scores), np.sort(expected), rtol=0, atol=1e-12)

    def test_notes_are_kept(self, index: Backend, place: Place) -> None:
        assert index.read_value("recall") is None
        index.write_value("recall", {"recall@10": 0.97, "text": "ä'\"\\\n"})
        index.write_value("long", ["0123456789" * 10] * 1000)
        index.write_value("recall", {"recall@10": 0.98})
        assert index.read_value("recall") == {"recall@10": 0.98}
        index.close()
        reader = place.again()
        assert reader.read_value("recall") == {"recall@10": 0.98}
        assert reader.read_value("long") == ["0123456789" * 10] * 1000
        assert reader.read_value("other") is None
        assert index.count.__self__.manifest == reader.manifest == manifest()  # type: ignore[attr-defined]
        reader.close()

    def test_an_index_that_is_open_for_reading_is_not_changed(self, index: Backend, place: Place) -> None:
        index.add(batch(["a"]))
        index.close()
        index.close()
        with pytest.raises(SearchError, match="closed"):
            index.count("image")
        reader = place.again()
        assert not reader.writable
        for change in (
            lambda: reader.add(batch(["b"])),
            lambda: reader.remove(["a"]),
            lambda: reader.write_value("x", 1),
            reader.compact,
        ):
            with pytest.raises(SearchError, match="open for reading"):
                change()
        assert reader.count("image") == 1
        reader.close()

    def test_settling_compacting_and_verifying_change_nothing(self, index: Backend) -> None:
        given, items = numbered(50)
        index.add(given)
        index.remove([f"i{n}" for n in range(20)])
        left = {key: own for key, own in items.items() if int(key[1:]) >= 20}
        stages: list[tuple[str, int, int]] = []
        index.optimize(lambda *stage: stages.append(stage))
        assert all(0 <= done <= of for _, done, of in stages)
        index.compact()
        assert index.verify() == []
        query = sets(1, 3, DIM, seed=3)[0]
        for mode in index.modes:
            found = index.search("image", query, 5, mode=mode)
            assert [item.id for item in found.items] == truth(query, left, 5)
        assert index.stats().items == 30

    def test_a_similarity_that_is_not_symmetric_knows_the_sides(self, place: Place) -> None:
        index = place.empty(manifest(similarity=SOFT))
        index.add(batch([f"i{n}" for n in range(20)]), batch([f"t{n}" for n in range(20)], "text", seed=1))
        stored = {"image": sets(20, SETS["image"], DIM), "text": sets(20, SETS["text"], DIM, seed=1)}
        for side, vectors in stored.items():
            query = sets(1, 5, DIM, seed=3)[0]
            scores = [score(query, each, SOFT, side) for each in vectors]
            order = sorted(range(20), key=lambda n: -scores[n])[:6]
            for mode in index.modes:
                found = index.search(side, query, 6, mode=mode)
                assert [item.id for item in found.items] == [f"{side[0]}{n}" for n in order]
                np.testing.assert_allclose(found.scores, [scores[n] for n in order], atol=1e-12)
            np.testing.assert_allclose(sorted(index.sample_scores(side, query, 20)), sorted(scores), atol=1e-12)
            (many,) = index.search_batch(side, query[None], 6)
            assert [item.id for item in many.items] == [f"{side[0]}{n}" for n in order]
        index.close()

    def test_a_similarity_that_no_bound_helps(self, place: Place) -> None:
        config = {"name": "match_probability", "form": "pcme"}
        index = place.empty(manifest(similarity=config, dtype="float16"))
        given, items = numbered(30)
        index.add(given)
        import torch

        query = sets(1, 3, DIM, seed=3)[0]
        stored = np.stack(list(items.values())).astype(np.float16)
        part = similarity.build(**config)
        scores = part.scores(torch.from_numpy(query)[None].double(), torch.from_numpy(stored).double())[0]
        expected = [f"i{n}" for n in scores.argsort(descending=True, stable=True)[:5].tolist()]
        for mode in index.modes:
            found = index.search("image", query, 5, mode=mode)
            assert [item.id for item in found.items] == expected
            np.testing.assert_allclose(found.scores, scores.sort(descending=True).values[:5], atol=1e-6)
        assert index.vectors("image", ["i0"]).dtype == np.float16
        index.close()
