import numpy as np
import pytest

from evaluation.sample_collections import collection, numbered, sorted_places
from polysem.errors import InputError
from polysem.evaluation import metrics, protocols
from polysem.evaluation.protocols import ModelScores
from polysem.evaluation.protocols.pairs import VideoProtocol
from polysem.evaluation.rescoring import Rescoring
from polysem.evaluation.score_matrix import ScoreMatrix


def measure(scores, data, **options):
    protocol = protocols.find("video")
    return protocol.measure(ModelScores("toy", ScoreMatrix(scores)), protocol.gallery(data), "test", **options)


def test_equal_captions_stand_once_and_are_right_for_all_their_videos():
    rng = np.random.default_rng(0)
    captions = [[f"words {number}" for number in rng.integers(0, 25, size)] for size in rng.integers(1, 6, 14)]
    data = collection(captions)
    texts = data.captions
    scores = rng.integers(0, 7, (14, len(texts))).astype(np.float32)
    kept = [t for t, text in enumerate(texts) if text not in texts[:t]]
    assert len(kept) < len(texts)
    found = measure(scores, data)
    right = np.array([[texts[t] in own for t in kept] for own in captions])
    assert (right.sum(0) > 1).any()
    for way, matrix, answers in (("i2t", scores[:, kept], right), ("t2i", scores[:, kept].T, right.T)):
        places = [sorted_places(s, np.flatnonzero(r)) for s, r in zip(matrix.tolist(), answers, strict=True)]
        assert found.rankings[way].ranks.tolist() == [place for each in places for place in each]
        first = np.array([each[0] for each in places])
        for cut in (1, 5, 10):
            assert found.metrics[way][f"r{cut}"] == pytest.approx(100 * (first < cut).mean(), abs=1e-9)
        assert found.metrics[way]["mean_rank"] == pytest.approx(first.mean() + 1, abs=1e-9)
        assert found.metrics[way]["median_rank"] == np.floor(np.median(first)) + 1
        assert found.metrics[way]["queries"] == len(matrix)
    assert found.metrics["rsum"] == pytest.approx(
        sum(found.metrics[way][f"r{cut}"] for way in ("i2t", "t2i") for cut in (1, 5, 10)), abs=1e-9
    )
    assert found.stamp.texts == len(kept)
    assert "unique captions" in str(found.stamp)


def test_without_repetitions_it_is_the_protocol_of_pairs():
    data = collection(numbered(9, 3))
    scores = np.random.default_rng(1).random((9, 27)).astype(np.float32)
    pairs = protocols.find("pairs")
    plain = pairs.measure(ModelScores("toy", ScoreMatrix(scores)), data, "test")
    found = measure(scores, data)
    assert found.metrics == plain.metrics
    for way in ("i2t", "t2i"):
        assert found.per_query[way].clusters.tolist() == plain.per_query[way].clusters.tolist()
        for name in metrics.METRICS:
            assert np.array_equal(found.per_query[way].values[name], plain.per_query[way].values[name])


def test_the_first_of_equal_captions_keeps_its_score():
    data = collection([["same"], ["same"], ["other"]])
    scores = np.array([[3.0, 9, 2], [3, 9, 2], [1, 9, 2]], dtype=np.float32)
    found = measure(scores, data)
    assert found.metrics["i2t"]["r1"] == 100  # the second column, which would beat all, is not in the gallery


def test_rescoring_asks_with_the_unique_captions():
    data = collection([["same"], ["same"], ["other"]])
    scores = np.array([[3.0, 900, 2], [3, 900, 2], [1, 900, 2]], dtype=np.float32)
    with_it = measure(scores, data, rescoring=Rescoring("query-bank", temperature=1.0))
    scores[:, 1] = -5
    assert with_it.metrics == measure(scores, data, rescoring=Rescoring("query-bank", temperature=1.0)).metrics
    assert "transductive: query-bank" in str(with_it.stamp)


def test_videos_without_captions_are_left_out_and_scores_must_fit():
    data = collection([["a", "b"], [], ["c"]])
    assert len(protocols.find("video").gallery(data)) == 2
    with pytest.raises(InputError, match="3 × 3"):
        measure(np.ones((3, 3), np.float32), data)


def test_it_is_registered():
    assert isinstance(protocols.catalogue()["video"], VideoProtocol)
