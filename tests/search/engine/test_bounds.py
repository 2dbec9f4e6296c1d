"""Bounds bound, slack covers rounding, and bounds are used where they pay."""

from pathlib import Path

import numpy as np
import pytest

from polysem.errors import NonFiniteError
from polysem.search.engine import Engine, SketchPlan, native, scan, sketch
from polysem.search.engine.engine import max_norm_error
from polysem.search.engine.scan import ScanItems, ScanQueries
from polysem.search.engine.scoring import FIXED_ONE, Scoring
from polysem.search.engine.sketch import build_sketches, learn_rotation, measure_plan, project_queries
from search.engine.support import SETTING, SMOOTH, SOFT, WAYS, sets, unit

CONFIGS = [SMOOTH, {"name": "smooth_chamfer", "alpha": 0.01}, {"name": "smooth_chamfer", "alpha": 1e4},
           {"name": "smooth_chamfer", "alpha": 39.0}, {"name": "chamfer"}, {"name": "mil"}, SOFT,
           {"name": "soft_maximum", "alpha": 0.01}, {"name": "soft_maximum", "alpha": 1e4}]  # fmt: skip
needs_native = pytest.mark.skipif(native.library() is None, reason="the native loops are not built here")


@pytest.fixture(params=[pytest.param(way, marks=() if way == "torch" else needs_native) for way in WAYS])
def way(request, monkeypatch):
    monkeypatch.setenv("POLYSEM_NATIVE", SETTING[request.param])
    return request.param


def truth(vectors, query, scoring):
    return scoring.reduce_exactly(scan.multiply_exactly(vectors, query))


def difficult(D):
    """Random, collapsed, one-dimensional, opposite and nearly equal sets."""
    rng = np.random.default_rng(0)
    base = sets(60, 4, D)
    return np.concatenate(
        [
            base,
            np.repeat(base[:20, :1], 4, axis=1),
            unit(np.eye(D)[rng.integers(0, D, (20, 4))]),
            -base[:20],
            unit(base[:1] + 1e-5 * rng.standard_normal((20, 4, D))),
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("side", ["image", "text"])
def test_the_slack_covers_what_a_scan_loses(way, config, dtype, side):
    scoring = Scoring.of(config, side)
    for D in (8, 100, 1000):
        vectors = difficult(D).astype(dtype)
        queries = difficult(D)[::9]
        slack = scoring.slack(4, 4, D, 0.001)
        batch = scan.scan_batch(ScanItems(vectors), ScanQueries(queries), scoring)
        batch_slack = scoring.slack(4, 4, D, 0.001, fixed=scan.count_fixed_sides(ScanItems(vectors), many=True))
        for query, others in zip(queries, batch, strict=True):
            expected = truth(vectors, query, scoring)
            assert (
                np.abs(scan.scan_query(ScanItems(vectors), ScanQueries(query[None]), scoring) - expected).max() < slack
            )
            assert np.abs(others - expected).max() < batch_slack


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("side", ["image", "text"])
def test_bounds_are_never_below_the_score(way, config, side):
    scoring = Scoring.of(config, side)
    for D in (8, 40, 256):
        vectors, queries = difficult(D), difficult(D)[::9]
        rotation = learn_rotation(vectors, np.random.default_rng(0))
        prefixes = sorted({8, D // 16 * 8 or 8, D})
        forms = project_queries(queries, rotation, prefixes, 1.00001)
        for level, form in zip(build_sketches(vectors, rotation, prefixes), forms, strict=True):
            slack = scoring.slack(4, 4, level.width, 0.0, fixed=scan.count_fixed_sides(level, many=False), bounds=True)
            fixed = scan.count_fixed_sides(level, many=True)
            batch_slack = scoring.slack(4, 4, level.width, 0.0, fixed=fixed, bounds=True)
            batch = scan.scan_batch(level, form, scoring)
            for q, query in enumerate(queries):
                expected = truth(vectors, query, scoring)
                assert (scan.scan_query(level, form.select(q), scoring) + slack >= expected).all()
                assert (batch[q] + batch_slack >= expected).all()


def test_sixteen_bits_hold_the_worst_that_unit_vectors_can_do(way):
    """All of a vector in one number, or every number as far from a whole one as can be, aligned or opposed."""
    scoring = Scoring.of({"name": "mil"})
    for D in (8, 1024, 4096):
        one = np.eye(D, dtype=np.float32)[:1] * np.float32(1.0099)
        halves = np.full((1, D), (np.floor(FIXED_ONE / D**0.5) + 0.5) / FIXED_ONE, np.float32)
        vectors = np.stack([one, -one, halves, -halves])
        found = scan.scan_batch(ScanItems(vectors), ScanQueries(vectors), scoring)
        expected = np.einsum("qld,nkd->qn", vectors.astype(float), vectors.astype(float))
        slack = scoring.slack(1, 1, D, 0.01, fixed=scan.count_fixed_sides(ScanItems(vectors), many=True))
        assert np.abs(found - expected).max() < slack


@pytest.mark.slow
@pytest.mark.parametrize(
    ("K", "L", "D"), [(1, 1, 8), (4, 4, 64), (3, 5, 40), (17, 7, 24), (2, 50, 72), (4, 4, 256), (1, 3, 128)]
)
def test_large_numbers_beside_small_ones(way, K, L, D):
    """Sums of two numbers fit 16 bits for some queries and some items, and not for others: both kinds in one batch."""
    scoring = Scoring.of({"name": "mil"})
    rng = np.random.default_rng(0)
    vectors, queries = rng.standard_normal((300, K, D)), rng.standard_normal((120, L, D))
    vectors[100:180, 0, 0], queries[:40, -1, 1] = 30, -30
    # What is alike in dimensions a sixteenth apart is one large number once it is spread.
    vectors[180:200, 0, :: max(1, D // 16)], queries[40:60, -1, 1 :: max(1, D // 16)] = 30, -30
    vectors, queries = ((x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32) for x in (vectors, queries))
    found = scan.scan_batch(ScanItems(vectors), ScanQueries(queries), scoring)
    expected = np.einsum("qld,nkd->qnlk", queries.astype(float), vectors.astype(float)).max((2, 3))
    slack = scoring.slack(K, L, D, 0.001, fixed=scan.count_fixed_sides(ScanItems(vectors), many=True))
    assert np.abs(found - expected).max() < slack


def test_bounds_hold_for_every_pair_of_vectors(way):
    vectors, queries = difficult(48)[:, :1], difficult(48)[::5, :1]
    rotation = learn_rotation(vectors, np.random.default_rng(0))
    (level,) = build_sketches(vectors, rotation, [16])
    scoring = Scoring.of({"name": "mil"})
    (form,) = project_queries(queries, rotation, [16], 1.00001)
    bounds = scan.scan_batch(level, form, scoring)
    products = queries[:, 0].astype(float) @ vectors[:, 0].astype(float).T
    assert (bounds + scoring.slack(1, 1, 16, 0.0, fixed=scan.count_fixed_sides(level, many=True)) >= products).all()
    assert bounds.max() < 1.0001


def test_a_rotation_may_come_from_other_vectors():
    engine = Engine.build(sets(2000, decay=1.0), SMOOTH, plan=SketchPlan((8,)))
    others = sets(2000, decay=0.0, seed=5)[:, :, ::-1].copy()
    foreign = Engine.build(others, SMOOTH, like=engine)
    for query in sets(5, decay=0.0, seed=6):
        mine, plain = foreign.search(query, 10), foreign.search(query, 10, brute=True)
        assert mine.positions.tolist() == plain.positions.tolist()
        assert mine.scores.tolist() == plain.scores.tolist()


@pytest.mark.slow
def test_bounds_spare_most_of_the_work_where_dimensions_decay(way):
    engine = Engine.build(sets(3000, 4, 256, decay=1.0), SMOOTH)
    assert engine.plan.prefixes
    assert 0 < engine.plan.cost < 1
    for query in sets(3, 4, 256, decay=1.0, seed=1):
        assert engine.search(query, 10).scored < 1000


def test_no_dimension_of_a_flat_spectrum_is_left_out(way):
    vectors = unit(np.random.default_rng(0).standard_normal((3000, 2, 64)))
    engine = Engine.build(vectors, SMOOTH)
    assert engine.plan.prefixes in ((), (64,))  # all of them in int8 may still pay


def test_without_a_sketch_everything_is_scored(way):
    engine = Engine.build(sets(3000, 2), SMOOTH, plan=SketchPlan())
    assert engine.search(sets(1, 2)[0], 5).scored == 3000


def test_few_items_are_scanned_plainly():
    assert Engine.build(sets(sketch.MIN_ITEMS - 1), SMOOTH).plan == SketchPlan()


def test_useless_bounds_are_tried_ever_more_seldom(way, monkeypatch):
    vectors = unit(np.random.default_rng(0).standard_normal((2100, 2, 64)))
    engine = Engine.build(vectors, SMOOTH, plan=SketchPlan((8,)))
    tried, plain = [], Engine.record_pruning
    monkeypatch.setattr(Engine, "record_pruning", lambda self, *found: (tried.append(found), plain(self, *found)))
    for query in unit(np.random.default_rng(1).standard_normal((100, 2, 64))):
        engine.search(query, 10)
    assert 2 <= len(tried) <= 10


def test_native_products_equal_numpy_s_to_the_last_bit():
    library = native.library()
    if library is None:
        pytest.skip("the native loops are not built here")
    for D in (1, 7, 8, 33, 256):
        for dtype in (np.float32, np.float16):
            vectors, query = sets(50, 3, D, dtype=dtype), sets(1, 5, D, seed=1)[0]
            rows = np.arange(50)[::-1].copy()
            found = np.empty((50, 3, 5))
            loops = native.Native(library, ScanItems(vectors), ScanQueries(query[None]), Scoring.of(SMOOTH))
            loops.products(rows, np.array([0, 50]), found, 0, 1)
            assert (found == scan.multiply_exactly(vectors[rows], query)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("D", [1, 7, 16, 100])
def test_norms_are_measured(way, dtype, D):
    vectors = (sets(40, 3, D) * np.linspace(0.995, 1.004, 40)[:, None, None]).astype(dtype)
    expected = np.abs(np.linalg.norm(vectors.astype(float), axis=-1) - 1).max()
    assert abs(max_norm_error(vectors, "item") - expected) < 1e-12
    vectors[33, 1, -1] = np.inf
    with pytest.raises(NonFiniteError, match="Vector 1 of item 33"):
        max_norm_error(vectors, "item")


def test_a_pair_s_score_does_not_depend_on_its_company():
    vectors, query = sets(200, 9), sets(1, 9, seed=1)[0]
    for config in CONFIGS:
        scoring = Scoring.of(config)
        together = truth(vectors, query, scoring)
        alone = np.concatenate([truth(vectors[i : i + 1], query, scoring) for i in range(200)])
        assert (together == alone).all()


def test_sixteen_bits_mean_the_same_in_python_and_natively():
    if native.library() is None:
        pytest.skip("the native loops are not built here")
    header = (Path(native.__file__).parent / "kernels.c").read_text()
    assert f"#define FIXED_ONE {FIXED_ONE} " in header


def test_a_plan_is_measured_with_the_queries_that_will_be_asked(monkeypatch):
    """Queries whose weight lies in the last dimensions, which short sketches leave out."""
    monkeypatch.setattr(sketch, "_seconds", lambda _: 1.0)
    monkeypatch.setattr(sketch, "_WORTHWHILE", np.inf)
    monkeypatch.setattr(sketch, "_PREFIXES", (32,))
    vectors = sets(3000, 4, 64, decay=1.2)
    asked = unit(np.random.default_rng(1).standard_normal((8, 2, 64)) * np.arange(1, 65) ** 1.2)
    scoring, rotation = Scoring.of(SMOOTH), learn_rotation(vectors, np.random.default_rng(0))
    kept = []
    for given in (None, asked):
        found = measure_plan(vectors, rotation, scoring, np.random.default_rng(0), given)
        kept.append(found.kept[0])
    assert kept[1] > 2 * kept[0]
    engine = Engine.build(vectors, SMOOTH, queries=asked)
    mine, plain = engine.search(asked[0], 10), engine.search(asked[0], 10, brute=True)
    assert (mine.positions == plain.positions).all()


@pytest.mark.parametrize("K", [1, 2, 8, 49])
@pytest.mark.parametrize("alpha", [0.5, 16.0, 300.0])
def test_a_soft_maximum_moves_by_no_more_than_the_slack_says(K, alpha):
    """Inner products moved by up to d, each in the direction that moves the score most, move it by d (1 + 2 ln K)."""
    rng, scoring = np.random.default_rng(0), Scoring.of({"name": "soft_maximum", "alpha": alpha})
    gaps = np.concatenate([rng.uniform(0, 2, (300, K)), np.repeat(np.linspace(0, 8, 300)[:, None] / alpha, K, 1)])
    gaps[:, 0] = 0
    c = (1 - gaps)[:, :, None]
    weights = np.exp(-alpha * gaps) / np.exp(-alpha * gaps).sum(1, keepdims=True)
    slopes = weights * (1 + alpha * (c[..., 0] - (weights * c[..., 0]).sum(1, keepdims=True)))
    for d in (0.1, 1e-3, 1e-6):
        moved = np.abs(scoring.reduce_exactly(c + d * np.sign(slopes)[..., None]) - scoring.reduce_exactly(c))
        assert moved.max() <= d * (1 + 2 * np.log(K)) + 1e-12
    assert K == 1 or moved.max() > 1.15 * d  # more than the inner products did


def test_kernels_of_an_older_source_are_not_used(monkeypatch):
    if native.library() is None:
        pytest.skip("the native loops are not built here")
    monkeypatch.setattr(native, "_MAX_OF_QUERY", native._MAX_OF_QUERY + 1)
    assert native._load.__wrapped__() is None
