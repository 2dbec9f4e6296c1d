import sys
from dataclasses import replace

import numpy as np
import pytest

from evaluation.sample_coco import CAPTIONS, IMAGES, caption_number, named, package, unnamed, write_csv
from evaluation.sample_evaluations import relevance_from_mask
from polysem.errors import ConfigError, InputError
from polysem.evaluation import metrics, protocols
from polysem.evaluation.protocols import ModelScores, cxc, eccv
from polysem.evaluation.protocols.cxc import (
    CxcProtocol,
    OffDiagonalScores,
    bootstrap_spearman,
    pair_siblings,
    read_rated_pairs,
    spearman,
)
from polysem.evaluation.ranking import rank_rows
from polysem.evaluation.rescoring import Rescoring
from polysem.evaluation.score_matrix import ScoreMatrix
from support import load_case

# ------------------------------------------------------------------------------------------------- the released figures


def released():
    """Scores and right answers of each way, and the figures of VSE∞'s released code."""
    case = load_case("recall_cxc_toy")
    image, text = (case.input[side].double().numpy() for side in ("img", "txt"))
    paired = relevance_from_mask(case.input["positives"].numpy())
    owners = np.repeat(np.arange(20), 5)
    alike = case.input["text_text_score"].numpy() >= 3.0
    alike[tuple(pair_siblings(owners).T)] = True
    ways = {
        "i2t": (image @ text.T, paired),
        "t2i": (text @ image.T, paired.transpose()),
        "i2i": (image @ image.T, relevance_from_mask(case.input["image_image_score"].numpy() >= 2.5)),
        "t2t": (text @ text.T, relevance_from_mask(alike)),
    }
    return ways, {way: case.output[way].numpy() for way in ways}


def recalls(scores, relevance):
    found = metrics.direction_metrics(rank_rows(scores, relevance))
    return [found[f"r{cut}"] for cut in (1, 5, 10)]


@pytest.mark.parametrize("way", ["i2t", "t2i", "i2i", "t2t"])
def test_the_released_figures(way):
    ways, expected = released()
    scores, relevance = ways[way]
    source = ScoreMatrix(scores) if way in ("i2t", "t2i") else OffDiagonalScores(ScoreMatrix(scores), 0.0)
    np.testing.assert_array_equal(recalls(source, relevance), expected[way])


def test_an_item_that_is_no_answer_to_itself_never_costs_a_place():
    ways, expected = released()
    for way in ("i2i", "t2t"):
        scores, relevance = ways[way]
        assert (np.array(recalls(OffDiagonalScores(ScoreMatrix(scores)), relevance)) >= expected[way]).all()
        with_itself = rank_rows(OffDiagonalScores(ScoreMatrix(scores), 0.0), relevance).ranks
        assert (rank_rows(OffDiagonalScores(ScoreMatrix(scores)), relevance).ranks <= with_itself).all()


# ------------------------------------------------------------------------------------------------------ a whole toy CxC


def caption(number):
    return f"COCO_val2014:sentid:{number}"


def picture(number):
    return f"COCO_val2014_{number:012}.jpg"


SITS = [
    (CAPTIONS[0], IMAGES[0], 4.9),
    (CAPTIONS[1], IMAGES[0], 2.9),  # what COCO paired, and CxC does not find right
    (CAPTIONS[0], IMAGES[2], 3.0),
    (CAPTIONS[7], IMAGES[4], 1.0),
    (CAPTIONS[9], IMAGES[5], 4.0),
]
STS = [(CAPTIONS[0], CAPTIONS[20], 3.2), (CAPTIONS[3], CAPTIONS[21], 2.0), (CAPTIONS[5], CAPTIONS[6], 1.0)]
SIS = [(IMAGES[0], IMAGES[3], 2.5), (IMAGES[1], IMAGES[2], 2.4), (IMAGES[4], IMAGES[0], 4.0)]


def annotations(folder, sits=SITS, sts=STS, sis=SIS, split="test"):
    for task, columns, rows, left, right in (
        ("sits", ("caption", "image"), sits, caption, picture),
        ("sts", ("caption1", "caption2"), sts, caption, caption),
        ("sis", ("image1", "image2"), sis, picture, picture),
    ):
        table = [(left(a), right(b), score, "some_method") for a, b, score in rows]
        write_csv(folder / f"{task}_{split}.csv", (*columns, "agg_score", "sampling_method"), table)
    return folder


def subject(within=True, seed=0):
    rng = np.random.default_rng(seed)
    image, text = (rng.standard_normal((count, 8)) for count in (len(IMAGES), len(CAPTIONS)))
    same = {"image": ScoreMatrix(image @ image.T), "text": ScoreMatrix(text @ text.T)} if within else {}
    return ModelScores("toy", ScoreMatrix(image @ text.T), within=same)


def measured(folder, collection=None, model=None, split="test", **options):
    protocol = protocols.find("cxc").with_options(annotations=folder, images=len(IMAGES), samples=20)
    collection = named() if collection is None else collection
    return protocol.measure(model or subject(), protocol.gallery(collection), split, **options)


def test_rated_pairs_are_right_from_their_threshold_on(tmp_path):
    found = measured(annotations(tmp_path))
    right = {
        way: {(int(q), int(p)) for q, p in zip(ranking.relevance.queries, ranking.relevance.positives, strict=True)}
        for way, ranking in found.rankings.items()
    }
    paired = {(text, text // 5) for text in range(len(CAPTIONS))}
    assert right["t2i"] == paired - {(1, 0)} | {(0, 2), (9, 5)}
    assert right["i2t"] == {(image, text) for text, image in right["t2i"]}
    family = {(a, b) for a in range(len(CAPTIONS)) for b in range(len(CAPTIONS)) if a // 5 == b // 5 and a != b}
    assert right["t2t"] == family | {(0, 20), (20, 0)}
    assert right["i2i"] == {(0, 3), (3, 0), (0, 4), (4, 0)}
    assert found.metrics["i2i"]["queries"] == 3
    assert found.metrics["i2i"]["queries_without_positives"] == 3


def test_every_way_is_measured_and_stamped(tmp_path):
    found = measured(annotations(tmp_path))
    assert {"rsum", "i2t", "t2i", "t2t", "i2i", "sits", "sts", "sis"} == set(found.metrics)
    assert found.stamp.remarks == ()
    assert found.per_query["t2t"].clusters.tolist() == [text // 5 for text in range(len(CAPTIONS))]
    assert found.per_query["i2i"].clusters.tolist() == [0, 3, 4]
    for way in ("i2t", "t2i", "t2t", "i2i"):
        assert abs(found.per_query[way].values["r1"].mean() - found.metrics[way]["r1"]) < 1e-9
    quirky = CxcProtocol(annotations=tmp_path, images=len(IMAGES), samples=20, quirk="zero-diagonal")
    assert "zero-diagonal" in str(quirky.measure(subject(), quirky.gallery(named()), "test").stamp)


def test_correlations_are_those_of_the_rated_pairs(tmp_path):
    model = subject()
    found = measured(annotations(tmp_path), model=model).metrics
    values = [model.scores.values[IMAGES.index(image), CAPTIONS.index(text)] for text, image, _ in SITS]
    assert abs(found["sits"]["spearman"] - 100 * spearman(values, [score for *_, score in SITS])) < 1e-9
    assert found["sits"]["pairs"] == 5
    values = [model.within["image"].values[IMAGES.index(a), IMAGES.index(b)] for a, b, _ in SIS]
    assert abs(found["sis"]["spearman"] - 100 * spearman(values, [score for *_, score in SIS])) < 1e-9


def test_scores_alone_leave_out_what_needs_embeddings(tmp_path):
    found = measured(annotations(tmp_path), model=subject(within=False))
    assert {"rsum", "i2t", "t2i", "sits"} == set(found.metrics)
    assert found.stamp.remarks == ("no text-text: no embeddings", "no image-image: no embeddings")


def test_a_missing_file_leaves_out_its_part(tmp_path):
    (annotations(tmp_path) / "sis_test.csv").unlink()
    found = measured(tmp_path)
    assert "i2i" not in found.metrics
    assert found.stamp.remarks == ("no image-image: no file of ratings",)


def test_the_val_split_has_files_of_its_own(tmp_path):
    annotations(tmp_path, split="val")
    assert measured(tmp_path, split="val").stamp.split == "val"
    with pytest.raises(InputError, match=r"no sits_test.csv.*google-research-datasets"):
        measured(tmp_path)
    with pytest.raises(InputError, match="not 'train'"):
        measured(tmp_path, split="train")


def test_rescoring_is_stamped(tmp_path):
    assert "transductive" in str(measured(annotations(tmp_path), rescoring=Rescoring("csls")).stamp)


# ---------------------------------------------------------------------------------------------------- what can be wrong


def test_pairs_outside_the_gallery_are_an_error(tmp_path):
    foreign = [(123, 456, 5.0)] * 3
    with pytest.raises(InputError, match=r"sits_test.csv: 3 of its 8 pairs.*ids 123 and 456.*Measure COCO's test"):
        measured(annotations(tmp_path, sits=[*SITS, *foreign]))


def test_a_few_pairs_outside_the_gallery_are_left_out_and_counted(tmp_path):
    many = [(CAPTIONS[8], IMAGES[place % 6], 1.0 + place / 100) for place in range(120)]
    found = measured(annotations(tmp_path, sits=[*SITS, *many, (123, IMAGES[0], 5.0)]))
    assert found.stamp.remarks == ("1 SITS pairs outside the gallery left out",)
    assert found.metrics["sits"]["pairs"] == 125


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("caption,image,rating\n", r"columns caption, image and agg_score, got caption, image, rating.*without _raw"),
        ("caption,image,agg_score\n", "holds no pairs"),
        ("caption,image,agg_score\nx,y,z\n", "line 2: expected two of COCO's ids and a number"),
        ("caption,image,agg_score\nx\n", "line 2: expected two of COCO's ids and a number"),
        ("", "got none"),
    ],
)
def test_a_file_that_is_not_cxcs_is_explained(tmp_path, text, message):
    (tmp_path / "sits_test.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_rated_pairs(tmp_path, "test")


def test_captions_without_ids_need_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(eccv, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="finds the ids of unnamed captions in the package eccv-caption, which is not"):
        measured(annotations(tmp_path), unnamed([str(image) for image in IMAGES]))
    with pytest.raises(InputError, match="reads its annotation from the package eccv-caption, which is not"):
        protocols.find("cxc").gallery(named())


def test_another_number_of_images_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"defined on the 6 images.*coco has 2 here.*dataset_coco.json"):
        measured(annotations(tmp_path), named(IMAGES[:2]))


def test_an_unknown_quirk_is_refused():
    with pytest.raises(ConfigError, match=r"Option quirk .*zero-diagonal.*got 'diagonal'"):
        replace(CxcProtocol(), quirk="diagonal")


def test_positives_of_the_package(tmp_path, monkeypatch):
    right = {image: [caption_number(image, 0)] for image in IMAGES}
    folder = package(
        tmp_path / "eccv_caption" / "data",
        {"cxc_image_to_caption": right, "cxc_caption_to_image": {caption_number(IMAGES[0], 0): [IMAGES[0], IMAGES[1]]}},
    )
    (folder.parent / "__init__.py").write_text("raise ImportError('nobody imports the package')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "eccv_caption", raising=False)
    protocol = protocols.find("cxc")
    found = protocol.measure(subject(), protocol.gallery(named()), "test")
    assert found.metrics["i2t"]["queries"] == len(IMAGES)
    assert found.metrics["t2i"]["queries"] == 1
    assert "no other ratings given" in str(found.stamp)


# ---------------------------------------------------------------------------------------------------------- correlation


def slow_ranks(values):
    return [sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values]


def test_spearman_is_the_correlation_of_ranks():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 6, 40).tolist() for _ in range(2))
    assert abs(spearman(a, b) - np.corrcoef(slow_ranks(a), slow_ranks(b))[0, 1]) < 1e-12
    assert spearman([1, 2, 3], [10, 20, 21]) == 1.0
    assert np.isnan(spearman([1, 1, 1], [1, 2, 3]))


def test_a_bootstrap_sample_has_half_of_the_queries_and_one_pair_of_each(monkeypatch):
    seen = []
    monkeypatch.setattr(cxc, "spearman", lambda judged, scores: seen.append(judged) or 0.0)
    queries = np.array([3, 1, 3, 2, 1, 3, 9])
    bootstrap_spearman(queries, queries.astype(float), np.zeros(7), samples=50)
    assert all(len(sample) == len(set(sample)) == 2 for sample in seen)
    assert {query for sample in seen for query in sample} == {1, 2, 3, 9}


def test_the_bootstrap_agrees_with_the_correlation_of_independent_pairs():
    rng = np.random.default_rng(0)
    judged = rng.standard_normal(2000)
    scores = judged + rng.standard_normal(2000)
    found = bootstrap_spearman(np.arange(2000), judged, scores, samples=100)
    assert abs(found.mean() - spearman(judged, scores)) < 0.01
    assert 0 < found.std() < 0.05


def test_scores_of_pairs_are_those_of_the_matrix():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((7, 9))
    rows, columns = rng.integers(0, 7, 30), rng.integers(0, 9, 30)
    np.testing.assert_array_equal(ScoreMatrix(values).pairs(rows, columns), values[rows, columns])
