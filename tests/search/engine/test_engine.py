"""Whatever the path, the answer is the same, to the last bit: native, portable, torch; bounded or not; batch or not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polysem.errors import ConfigError, InputError, NonFiniteError
from polysem.search.engine import Engine, SketchPlan, native, pruning, search_engines
from polysem.search.engine import engine as engine_module
from search.engine.support import SETTING, SMOOTH, SOFT, WAYS, assert_is_the_truth, sets, unit

CONFIGS = [
    SMOOTH,
    {"name": "smooth_chamfer", "alpha": 0.001},
    {"name": "smooth_chamfer", "alpha": 5000.0},
    {"name": "chamfer"},
    {"name": "mil"},
    SOFT,
    {"name": "soft_maximum", "alpha": 0.001},
    {"name": "soft_maximum", "alpha": 5000.0},
]
needs_native = pytest.mark.skipif(native.library() is None, reason="the native loops are not built here")


@pytest.fixture(params=[pytest.param(way, marks=() if way == "torch" else needs_native) for way in WAYS])
def way(request, monkeypatch):
    monkeypatch.setenv("POLYSEM_NATIVE", SETTING[request.param])
    return request.param


@pytest.fixture(autouse=True, scope="module")
def _bounds_for_few_items_too():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(engine_module, "_FEW", 0)
        monkeypatch.setattr(engine_module, "_FEW_PER_HIT", 0)
        yield


def every_answer(vectors, queries, config, k, plans, monkeypatch, side="image"):
    """The answers of all ways, plans and kinds of search, for each query."""
    found = []
    for way in WAYS:
        monkeypatch.setenv("POLYSEM_NATIVE", SETTING[way])
        for plan in plans:
            engine = Engine.build(vectors, config, plan=plan, side=side)
            found.append([engine.search(query, k) for query in queries])
            found.append([engine.search(query, k, brute=True) for query in queries])
            found.append(engine.search_batch(queries, k))
    return found


def assert_identical(answers):
    for answer in answers[1:]:
        for mine, other in zip(answer, answers[0], strict=True):
            assert mine.positions.tolist() == other.positions.tolist()
            assert mine.scores.tolist() == other.scores.tolist()


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("decay", [0.0, 0.7])
def test_every_path_gives_the_truth(config, decay, monkeypatch):
    vectors, queries = sets(350, decay=decay), sets(2, decay=decay, seed=1)
    plans = [SketchPlan(), SketchPlan((8,)), SketchPlan((8, 16))]
    for side in ("image", "text") if config["name"] == "soft_maximum" else ("image",):
        answers = every_answer(vectors, queries, config, 10, plans, monkeypatch, side)
        assert_identical(answers)
        for hits, query in zip(answers[0], queries, strict=True):
            assert_is_the_truth(hits, query, vectors, config, 10, side=side)


@pytest.mark.parametrize(
    ("N", "K", "L", "D"),
    [
        (1, 4, 4, 16),
        (3, 4, 4, 9),
        (7, 1, 1, 8),
        (50, 1, 5, 30),
        (41, 5, 1, 17),
        (33, 3, 7, 1),
        (65, 18, 2, 40),
        (90, 8, 1, 24),
        (90, 1, 8, 24),
    ],
)
def test_any_sizes(N, K, L, D, monkeypatch):
    vectors, queries = sets(N, K, D), sets(5, L, D, seed=1)
    plans = [SketchPlan(), *([SketchPlan((8,))] if D >= 8 else [])]
    for config, side in ((SMOOTH, "image"), (SOFT, "image"), (SOFT, "text")):
        answers = every_answer(vectors, queries, config, 10, plans, monkeypatch, side)
        assert_identical(answers)
        for hits, query in zip(answers[0], queries, strict=True):
            assert_is_the_truth(hits, query, vectors, config, 10, side=side)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    N=st.integers(1, 300),
    K=st.integers(1, 6),
    L=st.integers(1, 6),
    D=st.integers(8, 40),
    k=st.integers(1, 20),
    kind=st.sampled_from(["random", "few directions", "duplicates", "collapsed", "nearly equal", "opposite"]),
    config=st.sampled_from(CONFIGS),
    half=st.booleans(),
    side=st.sampled_from(["image", "text"]),
)
def test_adversarial_data(seed, N, K, L, D, k, kind, config, half, side):
    rng = np.random.default_rng(seed)
    vectors = unit(rng.standard_normal((N, K, D)))
    if kind == "few directions":
        vectors = unit(np.eye(D)[rng.integers(0, 3, (N, K))])
    elif kind == "duplicates":
        vectors = vectors[rng.integers(0, max(1, N // 10), N)]
    elif kind == "collapsed":
        vectors = np.repeat(vectors[:, :1], K, axis=1)
    elif kind == "nearly equal":
        vectors = unit(vectors[:1] + 1e-6 * rng.standard_normal((N, K, D)))
    elif kind == "opposite":
        vectors = unit(vectors[:1] * np.where(np.arange(N) % 2, 1, -1)[:, None, None])
    vectors = np.ascontiguousarray(vectors.astype(np.float16 if half else np.float32))
    query = unit(vectors[rng.integers(N)].astype(np.float64)[rng.integers(0, K, L)])
    with pytest.MonkeyPatch.context() as monkeypatch:
        answers = every_answer(vectors, query[None], config, k, [SketchPlan((8,)), SketchPlan()], monkeypatch, side)
    assert_identical(answers)
    assert_is_the_truth(answers[0][0], query, vectors, config, k, side=side)


def test_equal_scores_come_in_ascending_position(way):
    vectors = np.repeat(sets(3), [40, 30, 30], axis=0)[np.random.default_rng(0).permutation(100)]
    hits = Engine.build(vectors, SMOOTH, plan=SketchPlan((8,))).search(vectors[0], 25)
    same = np.flatnonzero((vectors == vectors[0]).all((1, 2)))
    assert hits.positions.tolist() == same[:25].tolist()
    assert len(set(hits.scores.tolist())) == 1


def test_the_score_is_the_similarity_s_own(way):
    import torch

    from polysem import similarity

    vectors, query = sets(50), sets(1, 3, seed=1)[0]
    for config in CONFIGS:
        hits = Engine.build(vectors, config).search(query, 50)
        double = torch.from_numpy(vectors).double(), torch.from_numpy(query)[None].double()
        expected = similarity.build(**config).scores(*double)[:, 0]
        np.testing.assert_allclose(hits.scores, expected[hits.positions], rtol=1e-12)


def test_cosine_of_single_vectors(way):
    config = {"name": "cosine"}
    vectors, query = sets(300, 1, dtype=np.float16), sets(1, 1, seed=1)[0]
    hits = Engine.build(vectors, config, plan=SketchPlan((8,))).search(query, 10)
    assert_is_the_truth(hits, query, vectors, config, 10)
    with pytest.raises(InputError, match="cosine compares single vectors, got sets of"):
        Engine.build(sets(5), config)


def test_a_similarity_that_normalises_may_compare_sets(monkeypatch):
    from polysem.similarity import MIL, Cosine

    monkeypatch.setattr(MIL, "normalises", True)
    assert len(Engine.build(sets(5), {"name": "mil"}).search(sets(1, seed=1)[0], 3).positions) == 3
    monkeypatch.setattr(MIL, "single_vectors", True)
    with pytest.raises(InputError, match="mil compares single vectors"):
        Engine.build(sets(5), {"name": "mil"})
    monkeypatch.setattr(Cosine, "normalises", False)
    with pytest.raises(InputError, match="cosine compares single vectors"):
        Engine.build(sets(5), {"name": "cosine"})


@pytest.mark.parametrize("config", [SMOOTH, SOFT], ids=lambda config: config["name"])
@pytest.mark.parametrize("share", [0.0, 0.004, 0.5, 1.0])
def test_only_allowed_items_are_found(way, share, config):
    vectors, query = sets(500), sets(1, seed=1)[0]
    allowed = np.random.default_rng(0).random(500) < share
    for plan in (SketchPlan(), SketchPlan((8, 16))):
        hits = Engine.build(vectors, config, plan=plan).search(query, 5, allowed)
        assert hits.scored <= allowed.sum()
        assert_is_the_truth(hits, query, vectors, config, 5, allowed)


@pytest.mark.parametrize("config", [SMOOTH, SOFT], ids=lambda config: config["name"])
@pytest.mark.parametrize("share", [0.0, 0.004, 0.5, 1.0])
def test_only_allowed_items_are_found_by_a_batch(way, share, config):
    vectors, queries = sets(500), sets(20, seed=1)
    allowed = np.random.default_rng(0).random(500) < share
    for plan in (SketchPlan(), SketchPlan((8, 16))):
        engine = Engine.build(vectors, config, plan=plan)
        found = engine.search_batch(queries, 5, allowed)
        assert all(hits.scored <= allowed.sum() for hits in found)
        assert_identical([found, [engine.search(query, 5, allowed, brute=True) for query in queries]])
    with pytest.raises(InputError, match="mask of all 500"):
        engine.search_batch(queries, 5, allowed[:9])


@pytest.mark.parametrize("config", [SMOOTH, SOFT], ids=lambda config: config["name"])
def test_more_near_ties_than_a_batch_has_room_for(way, config):
    rng = np.random.default_rng(0)
    vectors = unit(sets(1) + 1e-5 * rng.standard_normal((700, 4, 24)))
    for plan in (SketchPlan(), SketchPlan((8,))):
        engine = Engine.build(vectors, config, plan=plan)
        queries = sets(1).repeat(3, axis=0)
        assert_identical([engine.search_batch(queries, 3), [engine.search(query, 3, brute=True) for query in queries]])


def test_segments_together_answer_as_one(way):
    vectors, queries = sets(1500), sets(4, seed=1)
    whole = Engine.build(vectors, SMOOTH, plan=SketchPlan())
    first = Engine.build(vectors[:700], SMOOTH, plan=SketchPlan((8, 16)))
    later = Engine.build(vectors[700:1490], SMOOTH, like=first)
    parts = [first, later, Engine.build(vectors[1490:], SMOOTH), Engine.build(vectors[:0], SMOOTH)]
    allowed = np.random.default_rng(0).random(1500) < 0.7
    for query in queries:
        for mask in (None, allowed):
            assert_identical([[whole.search(query, 10, mask)], [search_engines(parts, query, 10, mask)]])


def test_an_engine_of_texts_comes_back_as_one():
    vectors, query = sets(60, 1), sets(1, 8, seed=1)[0]
    engine = Engine.build(vectors, SOFT, side="text")
    again = Engine.restore(vectors, *engine.state())
    assert_identical([[engine.search(query, 10)], [again.search(query, 10)]])
    assert_is_the_truth(again.search(query, 10), query, vectors, SOFT, 10, side="text")
    older = {name: value for name, value in engine.state()[0].items() if name != "side"}
    assert Engine.restore(vectors, older, engine.state()[1]).scoring.side == "image"


def test_an_engine_comes_back_from_its_state(way):
    import json

    vectors, queries = sets(600), sets(3, seed=1)
    engine = Engine.build(vectors, SMOOTH, plan=SketchPlan((8, 16), 0.5, (0.1, 0.01)))
    described, arrays = engine.state()
    again = Engine.restore(vectors, json.loads(json.dumps(described)), arrays)
    assert again.plan == engine.plan
    assert_identical([engine.search_batch(queries, 10), again.search_batch(queries, 10)])
    assert [hits.scored for hits in again.search_batch(queries, 10)] == [
        h.scored for h in engine.search_batch(queries, 10)
    ]
    with pytest.raises(InputError, match="built for"):
        Engine.restore(vectors[:10], described, arrays)


def test_a_memory_map_is_searched_in_place(way, tmp_path):
    np.save(tmp_path / "vectors.npy", sets(300))
    vectors = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    engine = Engine.build(vectors, SMOOTH, plan=SketchPlan((8,)))
    assert np.shares_memory(engine.vectors, vectors)
    assert_is_the_truth(engine.search(vectors[5], 3), vectors[5], vectors, SMOOTH, 3)


def test_an_empty_engine_finds_nothing(way):
    engine = Engine.build(sets(5)[:0], SMOOTH)
    assert len(engine.search(sets(1)[0], 3).positions) == 0
    assert [len(hits.positions) for hits in engine.search_batch(sets(2), 3)] == [0, 0]


def test_two_threads_change_nothing(way):
    import torch

    vectors, queries = sets(6000, 4, 64), sets(3, 4, 64, seed=1)
    engine = Engine.build(vectors, SMOOTH, plan=SketchPlan((16,)))
    alone = engine.search_batch(queries, 10), [engine.search(q, 10, brute=True) for q in queries]
    torch.set_num_threads(2)
    try:
        together = engine.search_batch(queries, 10), [engine.search(q, 10, brute=True) for q in queries]
    finally:
        torch.set_num_threads(1)
    assert_identical([*alone, *together])


@pytest.mark.slow
def test_more_queries_than_items_are_shared_out_by_queries(way):
    """The items fill no whole block of the native loops, nor do the queries of a thread."""
    import torch

    vectors, queries = sets(101, 4, 512), sets(1100, 4, 512, seed=1)
    engine = Engine.build(vectors, SMOOTH, plan=SketchPlan())
    alone = engine.search_batch(queries, 7)
    torch.set_num_threads(2)
    try:
        together = engine.search_batch(queries, 7)
    finally:
        torch.set_num_threads(1)
    some = range(0, 1100, 97)
    assert_identical([alone, together])
    assert_identical([[alone[q] for q in some], [engine.search(queries[q], 7, brute=True) for q in some]])


@pytest.mark.slow
@pytest.mark.parametrize("plan", [SketchPlan(), SketchPlan((8,))], ids=["scored", "bounded"])
def test_a_batch_in_which_some_queries_have_more_ties_than_there_is_room_for(way, plan):
    twins = np.repeat(sets(1), 300, axis=0)
    vectors = np.concatenate([sets(200, seed=1), twins])
    queries = np.concatenate([sets(3, seed=2), twins[:1], sets(2, seed=3)])
    engine = Engine.build(vectors, SMOOTH, plan=plan)
    found = engine.search_batch(queries, 5)
    assert found[3].positions.tolist() == [200, 201, 202, 203, 204]
    for hits, query in zip(found, queries, strict=True):
        assert_is_the_truth(hits, query, vectors, SMOOTH, 5)


def test_a_batch_too_large_for_one_part_of_the_decision(way, monkeypatch):
    monkeypatch.setattr(pruning, "_PRODUCTS", 1)
    vectors, queries = sets(90), sets(4, seed=1)
    allowed = np.arange(90) % 3 > 0
    engine = Engine.build(vectors, SMOOTH, plan=SketchPlan())
    for hits, query in zip(engine.search_batch(queries, 100, allowed), queries, strict=True):
        assert_is_the_truth(hits, query, vectors, SMOOTH, 100, allowed)


@pytest.mark.parametrize(
    ("broken", "error", "message"),
    [
        (lambda x: x[0], InputError, "items, set size, dim"),
        (lambda x: x.astype(np.float64), InputError, "float32 or float16"),
        (lambda x: x[:, :0], InputError, "items, set size, dim"),
        (lambda x: 2 * x, InputError, "norm 2"),
        (lambda x: np.where(np.arange(9)[:, None, None] == 3, 0, x).astype("f"), InputError, "item 3"),
        (lambda x: np.where(np.arange(9)[:, None, None] == 4, np.nan, x).astype("f"), NonFiniteError, "item 4"),
    ],
)  # fmt: skip
def test_bad_vectors_are_refused(broken, error, message):
    with pytest.raises(error, match=message):
        Engine.build(broken(sets(9)), SMOOTH)


def test_bad_questions_are_refused():
    engine = Engine.build(sets(9), SMOOTH)
    query = sets(1)[0]
    for bad in (query[0], query[:, :5], query[:0], query.astype(int)):
        with pytest.raises(InputError, match="same model"):
            engine.search(bad, 3)
    with pytest.raises(NonFiniteError, match="query 0"):
        engine.search(query * np.nan, 3)
    with pytest.raises(InputError, match="norm 0"):
        engine.search(query * 0, 3)
    with pytest.raises(InputError, match="at least 1"):
        engine.search(query, 0)
    with pytest.raises(InputError, match="mask of all 9"):
        engine.search(query, 3, np.ones(8, bool))


@pytest.mark.parametrize("config", [{"name": "match_probability"}, {"name": "smooth_chamfer", "metric": "euclidean"}])
def test_a_similarity_without_bounds_is_refused(config):
    with pytest.raises(ConfigError, match="smooth_chamfer"):
        Engine.build(sets(9), config)
