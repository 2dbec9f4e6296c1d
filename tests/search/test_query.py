"""One search on one snapshot, many searches at once, and searches by vectors and words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polysem.errors import InputError
from polysem.search import Entry, Index, Manifest, SearchResults, VectorBatch
from polysem.search.engine import SketchPlan, engine
from polysem.search.local import searcher
from polysem.search.local.backend import LocalReader

DIM, K = 16, 2
MANIFEST = Manifest("f", {"image": K, "text": K}, DIM, {"name": "smooth_chamfer"})


def vectors(count: int, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(count, K, DIM)) * np.arange(1, DIM + 1) ** -0.7
    return (drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)).astype(np.float32)


def entries(count: int, name: str = "item") -> list[Entry]:
    return [Entry(f"{name} {i}", metadata={"year": 2000 + i % 10}) for i in range(count)]


def same(one: SearchResults, other: SearchResults) -> bool:
    """All but how many were scored, and the time."""
    left, right = one.as_dict(), other.as_dict()
    return all(left[name] == right[name] for name in left if name not in ("scored", "seconds"))


# --------------------------------------------------------------------------------------------------------- one snapshot


@pytest.mark.parametrize("step", ["find", "has_items", "count", "search", "sample_scores", "frames"])
@pytest.mark.parametrize("asked", ["item", "vectors"])
def test_a_commit_between_the_steps_of_a_search_does_not_show(tmp_path, monkeypatch, step, asked):
    """A writer replaces everything after any step: the search is the one of the moment at which it began."""
    given = {"item": {"item": "item 3"}, "vectors": {"vectors": vectors(1, 5)[0]}}[asked]
    with Index.create(tmp_path / "index", MANIFEST) as writer:
        writer.add(VectorBatch("image", entries(300), vectors(300)))
        reader = Index.open(tmp_path / "index")
        options = {**given, "k": 40, "where": "year < 2008", "relevant": "mark", "dedupe": 0.999}
        expected = reader.search(**options)
        done = []
        real = getattr(LocalReader, step)

        def then_commit(self, *arguments, **more):
            answer = real(self, *arguments, **more)
            if not done:
                done.append(step)
                writer.remove([f"item {i}" for i in range(250)])
                writer.add(VectorBatch("image", entries(200, "new"), np.repeat(vectors(1, 5), 200, axis=0)))
                writer.compact()
            return answer

        monkeypatch.setattr(LocalReader, step, then_commit)
        found = reader.search(**options)
        assert bool(done) == (step != "find" or asked == "item")
        assert same(found, expected)
        assert found.scored <= found.of
        monkeypatch.undo()
        if done and asked == "vectors":
            assert reader.search(**options).ids[0].startswith("new")
        reader.close()


# -------------------------------------------------------------------------------------------------------- many searches


@pytest.fixture
def index(tmp_path: Path, monkeypatch):
    """Two sketched segments and a small one, some items removed."""
    monkeypatch.setattr(engine, "measure_plan", lambda *_: SketchPlan((8,), 0.5, (0.1,)))
    monkeypatch.setattr(engine, "_FEW", 10)
    monkeypatch.setattr(searcher, "MIN_SKETCHED", 500)
    with Index.create(tmp_path / "index", MANIFEST) as made:
        for number, count in enumerate((900, 600, 40)):
            made.add(VectorBatch("image", entries(count, f"part{number}"), vectors(count, number)))
        made.remove([f"part0 {i}" for i in range(0, 900, 7)])
        yield made


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 1},
        {"k": 5000},
        {"where": "year > 2006"},
        {"where": "year > 3000"},
        {"mode": "fast"},
        {"relevant": True},
        {"relevant": "mark", "dedupe": 0.9, "k": 30},
    ],
    ids=str,
)
@pytest.mark.slow
def test_many_searches_are_one_after_the_other_bit_for_bit(index, options):
    queries = vectors(9, seed=9)
    together = index.search_many(queries, **options)
    alone = [index.search(vectors=query, **options) for query in queries]
    assert len(together) == len(alone)
    assert all(same(one, other) for one, other in zip(together, alone, strict=True))
    assert all(each.seconds > 0 for each in together)


@pytest.mark.parametrize("similarity", [{"name": "match_probability", "form": "pcme"}, {"name": "mil"}], ids=str)
def test_many_searches_under_any_similarity_and_of_nothing(tmp_path, similarity):
    with Index.create(tmp_path / "index", Manifest("f", {"image": K}, DIM, similarity)) as index:
        assert [each.ids for each in index.search_many(vectors(2))] == [[], []]
        assert index.search_many(vectors(0)) == []
        index.add(VectorBatch("image", entries(50), vectors(50)))
        queries = vectors(4, seed=3)
        alone = [index.search(vectors=query) for query in queries]
        assert all(same(one, other) for one, other in zip(index.search_many(queries), alone, strict=True))


def test_what_is_no_list_of_queries_is_refused(index):
    with pytest.raises(InputError, match="'a dog'"):
        index.search_many("a dog")
    with pytest.raises(InputError, match="same model"):
        index.search_many(vectors(3)[:, :, :5])
    with pytest.raises(InputError, match="got 0"):
        index.search_many(vectors(3), k=0)


# -------------------------------------------------------------------------------------------------------------- hybrid


class FixedTexts:
    """An encoder that gives every text the same set."""

    def encode_texts(self, texts: list[str]) -> np.ndarray:
        return np.repeat(vectors(1, seed=42), len(texts), axis=0)


@pytest.fixture
def captioned(tmp_path: Path, monkeypatch):
    captions = ["a dog on a beach", "two dogs", "a red bicycle", None] * 100
    items = [Entry(f"i{n}", caption=text, metadata={"n": n}) for n, text in enumerate(captions)]
    items[250] = Entry("unicorn-250", caption="a unicorn", metadata={"n": 250})
    with Index.create(tmp_path / "index", MANIFEST) as index:
        index.add(VectorBatch("image", items, vectors(len(items))))
        monkeypatch.setattr(index, "_encoder", FixedTexts())
        yield index


def test_hybrid_search_is_the_fusion_of_both_rankings(captioned):
    by_vectors = captioned.search("the dog", k=200)
    with captioned._backend.snapshot() as now:
        by_words = now.search_words("image", "the dog", 200)
    expected: dict[str, float] = {}
    for ranking in (by_vectors.ids, [item.id for item in by_words]):
        for rank, key in enumerate(ranking, start=1):
            expected[key] = expected.get(key, 0) + 1 / (60 + rank)
    found = captioned.search("the dog", k=20, hybrid=True)
    assert found.hybrid
    assert not by_vectors.hybrid
    assert found.as_dict()["hybrid"] is True
    assert [result.score for result in found] == pytest.approx(sorted(expected.values(), reverse=True)[:20])
    assert {result.id: result.score for result in found} == pytest.approx({key: expected[key] for key in found.ids})
    assert found.ids != by_vectors.ids[:20]
    assert (found.of, found.mode) == (400, "exact")


def test_a_word_brings_up_what_vectors_miss(captioned):
    assert "unicorn-250" not in captioned.search("unicorn", k=10).ids
    for query in ("unicorn", "Unicorn!", "250"):
        found = captioned.search(query, k=10, hybrid=True, dedupe=True)
        assert "unicorn-250" in found.ids[:2]
    assert (
        captioned.search("unicorn", k=10, hybrid=True, where="n < 200").ids
        == captioned.search("unicorn", k=10, where="n < 200").ids
    )
    assert captioned.search("🐕", k=10, hybrid=True).ids == captioned.search("🐕", k=10).ids


def test_hybrid_search_needs_a_text_and_has_no_relevance(captioned):
    with pytest.raises(InputError, match="text as the query"):
        captioned.search(item="i3", hybrid=True)
    with pytest.raises(InputError, match="choose one"):
        captioned.search("dog", hybrid=True, relevant=True)
