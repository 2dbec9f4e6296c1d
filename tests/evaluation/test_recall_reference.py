"""Ranks and recalls against those of the released evaluation codes."""

import numpy as np
import pytest

from polysem import similarity
from polysem.evaluation import metrics
from polysem.evaluation.ranking import rank_bidirectional
from polysem.evaluation.score_matrix import EmbeddingScores, EnsembleScores, ScoreMatrix
from support import load_case

COLUMNS = ("r1", "r5", "r10", "median_rank", "mean_rank")


def figures(found):
    return {way: [found[way][name] for name in COLUMNS] for way in ("i2t", "t2i")}


def assert_released(rankings, case, prefix=""):
    found = figures(metrics.bidirectional_metrics(rankings))
    for way in ("i2t", "t2i"):
        assert found[way] == pytest.approx(case.output[f"{prefix}{way}"].tolist(), abs=1e-9)
        if not prefix:
            assert rankings[way].first.tolist() == case.output[f"{way}_ranks"].tolist()


@pytest.mark.parametrize(("name", "captions"), [("recall_50_images", 5), ("recall_one_to_one", 1)])
def test_ranks_and_recalls_of_vse_infinity(name, captions):
    case = load_case(name)
    scores = case.input["similarity"].numpy()
    whole, _ = rank_bidirectional(ScoreMatrix(scores), np.arange(scores.shape[1]) // captions, keep=3)
    assert_released(whole, case)
    for way in ("i2t", "t2i"):
        assert whole[way].top.rank()[0][:, 0].tolist() == case.output[f"{way}_top1"].tolist()
    if "rsum" in case.output:
        assert metrics.bidirectional_metrics(whole)["rsum"] == pytest.approx(float(case.output["rsum"]), abs=1e-9)


def test_five_folds_of_vse_infinity():
    case = load_case("recall_50_images")
    _, folds = rank_bidirectional(ScoreMatrix(case.input["similarity"]), np.arange(250) // 5, folds=5, whole=False)
    found = [metrics.bidirectional_metrics(fold) for fold in folds]

    def row(values):
        i2t, t2i = figures(values)["i2t"], figures(values)["t2i"]
        return [*i2t, *t2i, sum(i2t[:3]) / 3, sum(t2i[:3]) / 3, values["rsum"]]

    for values, released in zip(found, case.output["five_fold"].tolist(), strict=True):
        assert row(values) == pytest.approx(released, abs=1e-9)
    assert row(metrics.mean_over_folds(found)) == pytest.approx(case.output["five_fold_mean"].tolist(), abs=1e-9)


def test_the_ensemble_of_vse_infinity():
    case = load_case("recall_50_images")
    both = EnsembleScores([ScoreMatrix(case.input["similarity"]), ScoreMatrix(case.input["similarity_second_model"])])
    whole, _ = rank_bidirectional(both, np.arange(250) // 5)
    assert_released(whole, case, "ensemble_")


def test_ranks_and_recalls_of_dive():
    case = load_case("dive_recall_20_images")
    scores = EmbeddingScores(
        case.input["img"], case.input["txt"], similarity.build("smooth_chamfer", alpha=case.meta["temperature"])
    )
    whole, _ = rank_bidirectional(scores, np.arange(100) // 5)
    assert_released(whole, case)
