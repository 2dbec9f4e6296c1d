from importlib.util import find_spec

import numpy as np
import pytest

from evaluation.sample_coco import CAPTIONS, IMAGES, caption_number, named, package, unnamed
from evaluation.sample_evaluations import relevance_from_lists
from polysem.errors import InputError
from polysem.evaluation import metrics, protocols
from polysem.evaluation.protocols import ModelScores, eccv
from polysem.evaluation.protocols.eccv import (
    BY_CAPTION_ORDER,
    BY_POSITION,
    EccvCaptionFiles,
    EccvCaptionProtocol,
    add_missing_positives,
    relevance_from_ids,
)
from polysem.evaluation.ranking import Ranking, rank_rows
from polysem.evaluation.score_matrix import ScoreMatrix
from polysem.progress import section
from support import load_case

needs_package = pytest.mark.skipif(
    find_spec("eccv_caption") is None, reason="the package eccv-caption is not installed"
)


def case():
    """Scores, right answers and outputs of the authors' own metrics."""
    given = load_case("eccv_metrics_toy")
    ranking, gallery = given.input["ranking"].numpy(), np.unique(given.input["ranking"])
    scores = np.empty(ranking.shape)
    np.put_along_axis(scores, np.searchsorted(gallery, ranking), -np.arange(ranking.shape[1], dtype=float)[None], 1)
    lists = [[place for place in row if place >= 0] for row in given.input["positives"].tolist()]
    queries = given.input["query_ids"].numpy()
    relevance, lost = relevance_from_ids(dict(zip(queries.tolist(), lists, strict=True)), queries, gallery, "toy")
    assert not lost.any()
    return given, ScoreMatrix(scores), relevance, gallery


def test_the_authors_own_figures():
    given, scores, relevance, _ = case()
    found = metrics.direction_metrics(rank_rows(scores, relevance))
    for ours, theirs in {
        "map_at_r": "eccv_map_at_r",
        "r_precision": "eccv_rprecision",
        "r1": "eccv_r1",
        "r5": "recall_at_5",
        "r10": "recall_at_10",
    }.items():
        assert abs(found[ours] - 100 * float(given.output[theirs])) < 1e-9


def test_the_authors_own_figures_in_a_part_of_the_gallery():
    given, scores, relevance, gallery = case()
    fold = np.searchsorted(gallery, given.input["fold_gallery"].numpy())
    place = {int(answer): i for i, answer in enumerate(fold)}
    inside = [[place[p] for p in relevance.of(q).tolist() if p in place] for q in range(len(relevance))]
    part = scores.subset(np.arange(scores.shape[0]), fold)
    found = metrics.direction_metrics(rank_rows(part, relevance_from_lists(inside, len(fold))))
    assert abs(found["r1"] - 100 * float(given.output["fold_recall_at_1"])) < 1e-9
    assert abs(found["r5"] - 100 * float(given.output["fold_recall_at_5"])) < 1e-9


def slow_figures(ranked, right):
    """mAP@R and R-Precision as the paper defines them. ranked: ids, best first. right: ids, in the gallery or not."""
    precision = [sum(answer in right for answer in ranked[:r]) / r for r in range(1, len(right) + 1)]
    hits = [answer in right for answer in ranked[: len(right)]]
    return 100 * sum(p for p, hit in zip(precision, hits, strict=True) if hit) / len(right), 100 * precision[-1]


def test_right_answers_outside_the_gallery_make_r_larger():
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((4, 12))
    lists = [[0, 3, 100], [5], [1, 2, 4, 200, 201], [300]]
    relevance, lost = relevance_from_ids(dict(enumerate(lists)), np.arange(4), np.arange(12), "toy")
    assert lost.tolist() == [1, 0, 2, 1]
    found = metrics.query_metrics(add_missing_positives(rank_rows(ScoreMatrix(scores), relevance), lost))
    for query, right in enumerate(lists):
        slow = slow_figures(np.argsort(-scores[query]).tolist(), set(right))
        np.testing.assert_allclose([found["map_at_r"][query], found["r_precision"][query]], slow, atol=1e-9)
    assert found["r1"][3] == 0


def test_queries_without_right_answers_cost_nothing_and_change_nothing():
    scores = ScoreMatrix(np.random.default_rng(1).standard_normal((6, 9)))
    relevance = relevance_from_lists([[], [1, 2], [], [0], [8, 3], []], 9)
    whole, spared = rank_rows(scores, relevance, keep=2), rank_rows(scores, relevance)
    np.testing.assert_array_equal(whole.ranks, spared.ranks)
    assert whole.top.ids.shape == (6, 2)


POSITIVES = {
    "eccv_image_to_caption": {
        IMAGES[0]: [caption_number(IMAGES[0], 0), caption_number(IMAGES[2], 1), 5],
        IMAGES[3]: [caption_number(IMAGES[3], n) for n in range(5)],
    },
    "eccv_caption_to_image": {caption_number(IMAGES[1], 4): [IMAGES[1], IMAGES[5]]},
}


def measured(folder, collection, scores, **options):
    protocol = protocols.find("eccv-caption").with_options(annotations=package(folder, POSITIVES))
    return protocol.measure(ModelScores("toy", ScoreMatrix(scores)), protocol.gallery(collection), "test", **options)


def scores_of(images, seed=0):
    """Scores that belong to the ids, in whatever order they stand."""
    values = np.random.default_rng(seed).standard_normal((len(IMAGES), len(CAPTIONS)))
    order = [IMAGES.index(image) for image in images]
    return values[order][:, [5 * place + n for place in order for n in range(5)]]


def test_a_measurement_counts_what_was_annotated(tmp_path):
    found = measured(tmp_path, named(), scores_of(IMAGES))
    assert found.metrics["i2t"]["queries"] == 2
    assert found.metrics["i2t"]["positives"] == 8
    assert found.metrics["i2t"]["positives_outside_gallery"] == 1
    assert found.metrics["t2i"]["queries"] == 1
    ranked = [CAPTIONS[place] for place in np.argsort(-scores_of(IMAGES)[0])]
    slow = slow_figures(ranked, set(POSITIVES["eccv_image_to_caption"][IMAGES[0]]))
    assert abs(found.per_query["i2t"].values["map_at_r"][0] - slow[0]) < 1e-9
    assert found.per_query["t2i"].clusters.tolist() == [1]
    assert found.stamp.remarks == ()
    assert "annotated positives" in str(found.stamp)


def test_the_order_of_the_images_does_not_matter(tmp_path):
    turned = IMAGES[::-1]
    straight = measured(tmp_path, named(), scores_of(IMAGES))
    reverse = measured(tmp_path, named(turned), scores_of(turned))
    assert straight.metrics == reverse.metrics


def test_captions_that_do_not_count_leave_the_gallery(tmp_path):
    protocol = EccvCaptionProtocol(annotations=package(tmp_path, POSITIVES))
    gallery = protocol.gallery(named(extra=2))
    assert [len(item.captions) for item in gallery] == [5] * len(IMAGES)
    assert protocol.gallery(gallery).captions == gallery.captions


def test_bare_numbers_are_ids_and_captions_go_by_their_order(tmp_path):
    found = measured(tmp_path, unnamed([str(image) for image in IMAGES]), scores_of(IMAGES))
    assert found.stamp.remarks == (BY_CAPTION_ORDER,)
    assert found.metrics == measured(tmp_path, named(), scores_of(IMAGES)).metrics


def test_features_without_ids_go_by_position_and_the_stamp_says_so(tmp_path):
    found = measured(tmp_path, unnamed([f"testall-{place}" for place in range(len(IMAGES))]), scores_of(IMAGES))
    assert found.stamp.remarks == (BY_POSITION,)
    assert BY_POSITION in str(found.stamp)
    assert found.metrics == measured(tmp_path, named(), scores_of(IMAGES)).metrics


def test_file_names_of_other_images_never_go_by_position(tmp_path):
    protocol = EccvCaptionProtocol(annotations=package(tmp_path, POSITIVES))
    with pytest.raises(InputError, match=r"5 of them are among the 6.*image 391895.*Check --split"):
        protocol.gallery(named((999, *IMAGES[1:])))


def test_a_part_of_the_split_is_refused(tmp_path):
    protocol = EccvCaptionProtocol(annotations=package(tmp_path, POSITIVES))
    with pytest.raises(InputError, match="2 of them are among the 2"):
        protocol.gallery(named(IMAGES[:2]))
    with pytest.raises(InputError, match="0 of them are among the 1"):
        protocol.gallery(unnamed(["a"]))


def test_captions_of_other_ids_are_refused(tmp_path):
    protocol = EccvCaptionProtocol(annotations=package(tmp_path, POSITIVES))
    collection = named()
    first = collection[0]
    foreign = type(first)(first.id, first.media, first.captions, (), "test", (), ("1", "2", "3", "4", "5"))
    with pytest.raises(InputError, match=r"takes the captions 3918950.*has 1, 2, 3, 4, 5.*annotation ids"):
        protocol.gallery(type(collection)("coco", "image", [foreign, *collection.items[1:]]))


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(eccv, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"eccv-caption, which is not installed. Install it: pip install.*eccv"):
        protocols.find("eccv-caption").gallery(named())


def test_a_damaged_file_is_named(tmp_path):
    folder = package(tmp_path, {"eccv_image_to_caption": {}})
    (folder / "eccv_caption_to_image.json").write_text("{")
    with pytest.raises(InputError, match=r"eccv_caption_to_image.json is not the file"):
        EccvCaptionFiles(folder).read_positives("eccv")


def test_an_annotated_query_outside_the_gallery_is_an_error():
    with pytest.raises(InputError, match=r"1 of its 1 annotated queries are not in the gallery, e.g. 7"):
        relevance_from_ids({7: [1]}, np.array([1, 2]), np.array([1]), "toy")


def test_several_passes_are_one_progress():
    seen = []
    for number in range(2):
        step = section(lambda _, done, total: seen.append(done / total), 1000 * number, 1000, 2000)
        step("ranking", 1, 2)
        step("ranking", 2, 2)
    assert seen == [0.25, 0.5, 0.75, 1.0]


@needs_package
def test_the_real_annotation_has_its_known_counts():
    package_ = EccvCaptionFiles.find(None, "toy")
    (images, captions), annotation = package_.read_test_split(), package_.read_positives("eccv")
    assert images.shape == (5000,)
    assert captions.shape == (5000, 5)
    assert (np.diff(captions, axis=1) > 0).all()
    assert (len(annotation["i2t"]), sum(map(len, annotation["i2t"].values()))) == (1261, 22550)
    assert (len(annotation["t2i"]), sum(map(len, annotation["t2i"].values()))) == (1332, 11279)
    captions = captions.ravel()
    i2t, lost = relevance_from_ids(annotation["i2t"], images, captions, "toy")
    assert lost.sum() == 2
    assert relevance_from_ids(annotation["t2i"], captions, images, "toy")[1].sum() == 0
    perfect = Ranking(i2t, np.arange(len(i2t.positives)) - np.repeat(i2t.starts[:-1], i2t.counts))
    assert metrics.direction_metrics(perfect)["map_at_r"] == 100
    assert 99.9 < metrics.direction_metrics(add_missing_positives(perfect, lost))["map_at_r"] < 100
    cxc = package_.read_positives("cxc")
    assert (len(cxc["i2t"]), len(cxc["t2i"]), sum(map(len, cxc["i2t"].values()))) == (5000, 24972, 35585)
