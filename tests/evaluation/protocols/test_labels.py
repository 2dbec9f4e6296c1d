import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from evaluation.sample_collections import collection, flagged, numbered
from polysem.errors import ConfigError, InputError
from polysem.evaluation import protocols
from polysem.evaluation.metrics import discounts, graded_metrics, micro_f1, sort_gains
from polysem.evaluation.protocols import ModelScores, labels
from polysem.evaluation.protocols.labels import LabelsProtocol
from polysem.evaluation.rescoring import Rescoring
from polysem.evaluation.score_matrix import ScoreMatrix
from support import load_case


def measure(protocol, scores, gallery, predictions=None, **options):
    subject = ModelScores("toy", ScoreMatrix(scores), predictions=predictions or {})
    return protocol.measure(subject, protocol.gallery(gallery), "test", **options)


def slow_figures(scores, gains, k, discount=lambda place: math.log2(place + 2)):
    """One query, written as the definitions read."""
    order = sorted(range(len(scores)), key=lambda place: (-scores[place], gains[place]))
    found = [gains[place] for place in order]
    k = min(k, len(found))
    ideal = sum(gain / discount(place) for place, gain in enumerate(sorted(gains, reverse=True)[:k]))
    dcg = sum(gain / discount(place) for place, gain in enumerate(found[:k]))
    precisions = [
        sum(gain > 0 for gain in found[: place + 1]) / (place + 1) for place, gain in enumerate(found) if gain
    ]
    return {
        "ndcg": 100 * dcg / ideal if ideal else 0.0,
        "precision": 100 * sum(gain > 0 for gain in found[:k]) / k,
        "map": 100 * sum(precisions) / len(precisions) if precisions else 0.0,
    }


# ------------------------------------------------------------------------------------------ against the released code


def assert_recalls(found, ranks, released):
    """columns of `released`: r1, r5, r10, r20, r50, r100, median, mean."""
    assert [found["r1"], found["r5"], found["r10"]] == pytest.approx(released[:3].tolist(), abs=1e-9)
    assert [found["median_rank"], found["mean_rank"]] == pytest.approx(released[6:].tolist(), abs=1e-9)
    assert found["queries"] == len(ranks)


def test_the_released_figures_on_coco():
    case = load_case("ndcg_coco")
    scores = case.input["img"].double() @ case.input["txt"].double().t()
    data = collection(numbered(30, 5), flagged(case.input["labels"].numpy()))
    protocol = replace(protocols.find("labels"), k=case.meta["k"])
    plain = measure(protocol, scores.numpy(), data)
    quirky = measure(replace(protocol, quirk="flattened-discount"), scores.numpy(), data)
    output = {name: float(value) for name, value in case.output.items() if value.ndim == 0}
    assert plain.metrics["i2t"]["ndcg20"] == pytest.approx(output["ndcg_i2t"], abs=1e-9)
    assert plain.metrics["t2i"]["ndcg20"] == pytest.approx(output["ndcg_t2i_standard"], abs=1e-9)
    assert quirky.metrics["t2i"]["ndcg20"] == pytest.approx(output["ndcg_t2i"], abs=1e-9)
    assert quirky.metrics["i2t"] == plain.metrics["i2t"]
    assert "flattened-discount" in str(quirky.stamp)
    for way in ("i2t", "t2i"):
        assert_recalls(plain.metrics[way], case.output[f"{way}_ranks"], case.output[way])


def test_the_released_figures_on_tags():
    case = load_case("ndcg_tags")
    images, texts = (torch.nn.functional.normalize(case.input[name].double(), dim=1) for name in ("img", "txt"))
    words = [[" ".join(map(str, row))] for row in case.input["tokens"].tolist()]
    protocol = replace(protocols.find("labels-tags"), k=case.meta["k"])
    scores = (images @ texts.t()).numpy()
    found = measure(protocol, scores, collection(words, flagged(case.input["labels"].numpy())))
    for way in ("i2t", "t2i"):
        assert found.metrics[way]["ndcg15"] == pytest.approx(float(case.output[f"ndcg_{way}"]), abs=1e-9)
        assert_recalls(found.metrics[way], case.output[f"{way}_ranks"], case.output[way])
    # Ours come in the order of the texts, the released ones in the order of their tokens.
    order = np.argsort(case.input["unique_index"].numpy())
    first = found.rankings["t2i"].first
    assert first.tolist() == case.output["t2i_ranks"].numpy()[order].tolist()
    assert found.rankings["i2t"].first.tolist() == case.output["i2t_ranks"].tolist()
    assert (found.stamp.images, found.stamp.texts) == (60, 39)


# ------------------------------------------------------------------------------------------ against the definitions


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 3, 12])
def test_figures_are_those_of_the_definitions(dtype, k):
    rng = np.random.default_rng(k)
    scores = rng.integers(-2, 3, (40, 12)).astype(dtype)  # many ties, zeros of both signs
    scores[::2] *= -1
    gains = rng.integers(0, 4, (40, 12)).astype(np.uint32) * (rng.random((40, 1)) < 0.8)
    gains = gains.astype(np.uint32)
    found = graded_metrics(scores, gains, discounts(k))
    expected = [slow_figures(s, g, k) for s, g in zip(scores.tolist(), gains.tolist(), strict=True)]
    for name in ("ndcg", "precision", "map"):
        assert found[name].tolist() == pytest.approx([each[name] for each in expected], abs=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ties_and_infinities_are_ordered_against_the_model(dtype):
    scores = np.array([[0.0, -0.0, np.inf, -np.inf, np.inf, -np.inf, 0.5]], dtype=dtype)
    gains = np.array([[3, 1, 7, 2, 5, 0, 4]], dtype=np.uint32)
    assert sort_gains(scores, gains).tolist() == [[5, 7, 4, 1, 3, 0, 2]]


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("pairs", [1, 37, 1 << 19])
def test_the_protocol_is_the_definitions_whatever_the_blocks(monkeypatch, unique, pairs):
    monkeypatch.setattr(labels, "PAIRS", pairs)
    rng = np.random.default_rng(3)
    flags = rng.random((11, 4)) < 0.4
    flags[4] = False
    captions = [[f"words {number}" for number in rng.integers(0, 12, size)] for size in rng.integers(1, 4, 11)]
    data = collection(captions, flagged(flags))
    texts, owners = data.captions, data.caption_items
    scores = rng.integers(0, 6, (11, len(texts))).astype(np.float32)
    kept = [t for t, text in enumerate(texts) if not unique or text not in texts[:t]]
    shared = (flags.astype(int) @ flags.T.astype(int))[:, owners][:, kept]
    found = measure(LabelsProtocol("toy", "", k=5, unique_texts=unique), scores, data)
    for way, matrix, gains in (("i2t", scores[:, kept], shared), ("t2i", scores[:, kept].T, shared.T)):
        expected = [slow_figures(s, g, 5) for s, g in zip(matrix.tolist(), gains.tolist(), strict=True)]
        for name, key in (("ndcg", "ndcg5"), ("precision", "precision5"), ("map", "map")):
            values = [each[name] for each in expected]
            assert found.per_query[way].values[key].tolist() == pytest.approx(values, abs=1e-9)
            assert found.metrics[way][key] == pytest.approx(np.mean(values), abs=1e-9)
        assert found.metrics[way]["queries_without_shared_labels"] == sum(row.max() == 0 for row in gains)
    assert found.per_query["t2i"].clusters.tolist() == owners[kept].tolist()


def test_a_gallery_smaller_than_k_caps_it():
    data = collection(numbered(4, 1), [["a"], ["a"], ["b"], []])
    found = measure(protocols.find("labels"), np.eye(4, dtype=np.float32), data)
    assert found.metrics["i2t"]["precision500"] == pytest.approx(100 * (2 + 2 + 1 + 0) / 16)
    assert found.metrics["i2t"]["queries_without_shared_labels"] == 1
    assert "k capped by the gallery" in str(found.stamp)


def test_a_perfect_order_is_worth_100_and_equal_scores_are_worth_the_least():
    data = collection(numbered(6, 2), [["a", "b"]] * 2 + [["a"]] * 2 + [["c"]] * 2)
    names = np.array([item.labels for item in data], dtype=object)
    shared = np.array([[len(set(a) & set(b)) for b in names[data.caption_items]] for a in names])
    best = measure(LabelsProtocol("toy", "", k=2), shared.astype(np.float32), data).metrics
    worst = measure(LabelsProtocol("toy", "", k=2), np.ones((6, 12), np.float32), data).metrics
    for way in ("i2t", "t2i"):
        assert best[way]["ndcg2"] == best[way]["map"] == pytest.approx(100)
        assert worst[way]["ndcg2"] == worst[way]["precision2"] == worst[way]["r1"] == 0


def test_rankings_name_texts_as_the_collection_does():
    data = collection([["same", "x"], ["same"], ["y"]], [["a"]] * 3)
    scores = np.array([[5.0, 1, 5, 3], [9, 2, 9, 4], [1, 2, 1, 6]], dtype=np.float32)
    found = measure(LabelsProtocol("toy", "", unique_texts=True), scores, data, keep=2)
    assert found.rankings["i2t"].top.rank()[0][:, :3].tolist() == [[0, 3, 1], [0, 3, 1], [3, 1, 0]]
    ids = found.rankings["t2i"].top.rank()[0][:, :3].tolist()
    assert ids == [[1, 0, 2], [1, 2, 0], [-1, -1, -1], [2, 1, 0]]
    assert found.rankings["t2i"].relevance.counts.tolist() == [2, 1, 0, 1]


def test_rescoring_is_stamped():
    data = collection(numbered(4, 1), [["a"], ["a"], ["b"], ["b"]])
    scores = np.random.default_rng(0).random((4, 4)).astype(np.float32)
    found = measure(protocols.find("labels"), scores, data, rescoring=Rescoring("dual-softmax"))
    assert "transductive: dual-softmax" in str(found.stamp)


def test_progress_reaches_its_end():
    data = collection(numbered(4, 2), [["a"]] * 4)
    steps = []
    measure(protocols.find("labels"), np.ones((4, 8), np.float32), data, progress=lambda _, *step: steps.append(step))
    assert steps == sorted(steps)
    assert steps[-1] == (24, 24)


# ------------------------------------------------------------------------------------------ predictions


def test_micro_f1_counts_all_decisions_together():
    probabilities = np.array([[0.9, 0.5, 0.1], [0.2, 0.4, 0.7], [0.1, 0.1, 0.1]])
    found = micro_f1(probabilities, [["a", "c"], ["c"], ["b"]], ["a", "b", "c"])
    assert found == pytest.approx(100 * 2 * 2 / (3 + 4))
    assert micro_f1(torch.from_numpy(probabilities), [["a", "c"], ["c"], ["b"]], ["a", "b", "c"]) == found
    assert micro_f1(np.zeros((1, 1)), [[]], ["a"]) == 0
    assert micro_f1(np.ones((1, 1)), [["a", "unheard of"]], ["a"]) == pytest.approx(100 * 2 / 3)


def test_predictions_of_each_side_are_measured():
    data = collection(numbered(2, 2), [["a"], ["b"]])
    predictions = {"image": np.eye(2), "text": np.eye(2)[[0, 1, 1, 1]]}
    found = measure(protocols.find("labels"), np.ones((2, 4), np.float32), data, predictions)
    assert found.metrics["micro_f1"] == {"image": 100.0, "text": 75.0}
    turned = {"image": np.eye(2)[::-1], "classes": ["b", "a"]}
    found = measure(protocols.find("labels"), np.ones((2, 4), np.float32), data, turned)
    assert found.metrics["micro_f1"] == {"image": 100.0}


@pytest.mark.parametrize("bad", [np.zeros((2, 3)), np.zeros((3, 2)), np.full((2, 2), np.nan)])
def test_predictions_that_do_not_fit_are_refused(bad):
    data = collection(numbered(2, 2), [["a"], ["b"]])
    with pytest.raises(InputError, match="Predictions"):
        measure(protocols.find("labels"), np.ones((2, 4), np.float32), data, {"image": bad})


# ------------------------------------------------------------------------------------------ mistakes


def test_a_collection_without_labels_is_told_where_they_come_from():
    with pytest.raises(InputError, match=r"no labels here.*captions\.csv.*folder_labels.*--protocol pairs"):
        protocols.find("labels").gallery(collection(numbered(2, 1)))


def test_options_that_mean_nothing_are_refused():
    with pytest.raises(ConfigError, match=r"Option k .*greater than 0, got 0"):
        LabelsProtocol("toy", "", k=0)
    with pytest.raises(ConfigError, match=r"Option quirk .*flattened-discount.*got 'flat'"):
        LabelsProtocol("toy", "", quirk="flat")


def test_scores_of_another_collection_are_refused():
    with pytest.raises(InputError, match="transposed"):
        measure(protocols.find("labels"), np.ones((4, 2), np.float32), collection(numbered(2, 2), [["a"], ["b"]]))
