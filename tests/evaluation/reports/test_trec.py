"""Run and qrels files: other tools find in them what our metrics say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from ir_measures import RR, R, Success, iter_calc, nDCG, read_trec_qrels, read_trec_run

from evaluation.sample_collections import collection, numbered
from evaluation.sample_evaluations import relevance_from_lists
from polysem.errors import InputError
from polysem.evaluation import metrics
from polysem.evaluation.ranking import Ranking, rank_bidirectional, rank_rows
from polysem.evaluation.reports import trec
from polysem.evaluation.score_matrix import ScoreMatrix

MEASURES = {"r1": Success @ 1, "r5": Success @ 5, "r10": Success @ 10, "recall10": R @ 10, "ndcg10": nDCG @ 10}


def tied(kind: str, keep: int = 30) -> Ranking:
    """Forty queries over sixty answers, right ones from none to eight, with few different scores."""
    random = np.random.default_rng(0)
    scores = {
        "whole numbers": random.integers(-3, 4, size=(40, 60)),
        "zero": np.zeros((40, 60)),
        "far from zero": random.integers(0, 3, size=(40, 60)) * 1.5e38,
        "lowest": np.full((40, 60), np.finfo(np.float32).min),
        "nearly equal": 1 + 1e-7 * random.integers(0, 4, size=(40, 60)),
        "all different": random.normal(size=(40, 60)),
    }[kind].astype(np.float32)
    positives = relevance_from_lists([random.permutation(60)[: query % 9] for query in range(40)], 60)
    return rank_rows(ScoreMatrix(scores), positives, keep=keep)


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix} {number:03}%" for number in range(count)]


def write(ranking: Ranking, folder: Path) -> tuple[Path, Path]:
    queries, answers = names("q", len(ranking.relevance)), names("d", ranking.relevance.gallery)
    return trec.write_trec(folder / "toy", ranking, queries, answers, tag="a tag")


def measured(qrels: object, run: object, measure: object) -> list[float]:
    found = {each.query_id: each.value for each in iter_calc([measure], qrels, run)}
    return [100 * found[query] for query in sorted(found)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whole numbers", "zero", "far from zero", "lowest", "nearly equal", "all different"])
def test_trec_eval_finds_our_figures_in_the_files(kind: str, tmp_path: Path) -> None:
    ranking = tied(kind, keep=60)
    qrels, run = (str(path) for path in write(ranking, tmp_path))
    ours = metrics.query_metrics(ranking)
    for name, measure in {**MEASURES, "mrr": RR}.items():
        theirs = measured(list(read_trec_qrels(qrels)), list(read_trec_run(run)), measure)
        np.testing.assert_allclose(ours[name], theirs, rtol=0, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("keep", [10, 12, 30])
@pytest.mark.parametrize("kind", ["whole numbers", "zero", "nearly equal"])
def test_a_run_cut_off_amid_equal_scores_never_flatters(kind: str, keep: int) -> None:
    ranking = tied(kind, keep)
    qrels, run = trec.as_ranx(ranking, names("q", 40), names("d", 60))
    assert run.keys() == qrels.keys()
    ours = metrics.query_metrics(ranking)
    for name, measure in MEASURES.items():
        theirs = np.array(measured(qrels, run, measure))
        assert (theirs <= ours[name] + 1e-7).all(), name
        if keep == 30 and kind != "zero":
            np.testing.assert_allclose(theirs, ours[name], atol=1e-7, err_msg=name)


def test_a_run_has_ranks_and_strictly_falling_scores_close_to_the_models(tmp_path: Path) -> None:
    ranking = tied("whole numbers")
    _, path = write(ranking, tmp_path)
    assert ranking.top is not None
    ids, values = ranking.top.rank()
    rows: dict[str, list[list[str]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        query, zero, answer, rank, score, tag = line.split(" ")
        assert (zero, tag) == ("Q0", "a%20tag")
        rows.setdefault(query, []).append([answer, rank, score])
    assert len(rows) == np.count_nonzero(ranking.relevance.counts)
    for query, lines in rows.items():
        number = int(unquote(query)[2:5])
        real = dict(zip(ids[number].tolist(), values[number].tolist(), strict=True))
        scores = np.array([score for _, _, score in lines], dtype=np.float32)
        assert [rank for _, rank, _ in lines] == [str(n + 1) for n in range(len(lines))]
        assert (np.diff(scores) < 0).all()
        np.testing.assert_allclose(scores, [real[int(unquote(name)[2:5])] for name, _, _ in lines], atol=2e-5)


def test_scores_that_differ_are_written_as_they_are() -> None:
    ranking = tied("all different", keep=60)
    _, run = trec.as_ranx(ranking, names("q", 40), names("d", 60))
    assert ranking.top is not None
    _, values = ranking.top.rank()
    for query in np.flatnonzero(ranking.relevance.counts):
        assert list(run[trec.escape_id(names("q", 40)[query])].values()) == values[query].tolist()


def test_qrels_list_what_is_right(tmp_path: Path) -> None:
    ranking = tied("all different")
    path, _ = write(ranking, tmp_path)
    lines = [line.split(" ") for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = {(int(unquote(query)[2:5]), int(unquote(answer)[2:5])) for query, _, answer, _ in lines}
    assert pairs == set(zip(ranking.relevance.queries.tolist(), ranking.relevance.positives.tolist(), strict=True))
    assert {(zero, one) for _, zero, _, one in lines} == {("0", "1")}


def test_both_directions_of_a_collection_are_exported_by_its_ids(tmp_path: Path) -> None:
    gallery = collection(numbered(6, 2))
    scores = np.random.default_rng(0).normal(size=(6, 12))
    both, _ = rank_bidirectional(ScoreMatrix(scores), gallery.caption_items, keep=4)
    written = trec.export_trec({"i2t": both["i2t"], "t2i": both["t2i"]}, gallery, tmp_path / "new", tag="toy")
    assert [path.name for path in written] == ["i2t.qrels", "i2t.run", "t2i.qrels", "t2i.run"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(path.name for path in written)
    assert written[0].read_text(encoding="utf-8").splitlines()[:2] == [
        "item%200 0 item%200#0 1",
        "item%200 0 item%200#1 1",
    ]
    first = written[3].read_text(encoding="utf-8").splitlines()[0].split(" ")
    assert first[0] == "item%200#0"
    assert first[2] == f"item%20{scores[:, 0].argmax()}"
    for way, ranking in (("i2t", both["i2t"]), ("t2i", both["t2i"])):
        qrels = list(read_trec_qrels(str(tmp_path / "new" / f"{way}.qrels")))
        run = list(read_trec_run(str(tmp_path / "new" / f"{way}.run")))
        assert np.mean(measured(qrels, run, Success @ 1)) == pytest.approx(metrics.direction_metrics(ranking)["r1"])


def test_captions_keep_the_names_that_the_data_set_gives_them() -> None:
    gallery = collection(numbered(2, 2))
    first, second = gallery
    named = [replace(first, caption_ids=("17", "4")), replace(second, caption_ids=("8", "9"))]
    assert trec.caption_ids(replace(gallery, items=named)) == ["17", "4", "8", "9"]
    unclear = [named[0], replace(second, caption_ids=("4", "9"))]
    assert trec.caption_ids(replace(gallery, items=unclear)) == ["item 0#0", "item 0#1", "item 1#0", "item 1#1"]
    assert trec.caption_ids(replace(gallery, items=[named[0], second])) == trec.caption_ids(gallery)


@pytest.mark.parametrize("name", ["a b", "100%", "a\tb\nc", "no\u00a0break", "größe", "%20", "\u2028"])
def test_an_escaped_id_has_no_white_space_and_can_be_read_back(name: str) -> None:
    assert len(trec.escape_id(name).split()) == 1
    assert unquote(trec.escape_id(name)) == name


def test_ids_must_be_as_many_as_there_are_and_different() -> None:
    ranking = tied("all different")
    with pytest.raises(InputError, match="queries number 40, and 39 ids"):
        trec.as_ranx(ranking, names("q", 39), names("d", 60))
    with pytest.raises(InputError, match=r"1 occur twice, e\.g\. 'x'"):
        trec.as_ranx(ranking, names("q", 40), [*names("d", 58), "x", "x"])
    with pytest.raises(InputError, match="empty id"):
        trec.as_ranx(ranking, names("q", 40), [*names("d", 59), ""])


def test_a_ranking_that_kept_nothing_makes_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="keep=100"):
        write(tied("all different", keep=0), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["toy.qrels"]
    with pytest.raises(InputError, match="without folds"):
        trec.export_trec({}, collection(numbered(2, 1)), tmp_path)


def test_a_query_that_no_answer_can_be_shown_for_is_not_dropped_in_silence() -> None:
    everything_equal = rank_rows(ScoreMatrix(np.zeros((1, 5))), relevance_from_lists([[0, 1, 2, 3]], 5), keep=1)
    assert everything_equal.top is not None
    everything_equal.top.ids[:] = 0  # of equal scores any may have been kept
    with pytest.raises(InputError, match="Keep more answers"):
        trec.as_ranx(everything_equal, ["q"], list("abcde"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # numba's, while it compiles
@pytest.mark.parametrize("kind", ["whole numbers", "zero", "lowest"])
def test_ranx_finds_our_figures_in_the_dicts(kind: str) -> None:
    ranx = pytest.importorskip("ranx", reason="ranx brings numba and pandas: too much to ask for, welcome if there")
    ranking = tied(kind, keep=60)
    qrels, run = trec.as_ranx(ranking, names("q", 40), names("d", 60))
    theirs = {"r1": "hit_rate@1", "r5": "hit_rate@5", "recall10": "recall@10", "mrr": "mrr", "map": "map"}
    theirs |= {"r_precision": "r-precision", "ndcg10": "ndcg@10"}
    ours = metrics.query_metrics(ranking)
    for name, metric in theirs.items():
        found = ranx.evaluate(ranx.Qrels(qrels), ranx.Run(run), metric, return_mean=False)
        assert np.mean(found) == pytest.approx(ours[name].mean() / 100, abs=1e-9), name
        np.testing.assert_allclose(np.sort(found), np.sort(ours[name]) / 100, atol=1e-9, err_msg=name)
