import math
from pathlib import Path

import numpy as np
import pytest

from polysem.data.collection import Collection, Item, Media
from polysem.errors import InputError
from polysem.evaluation import protocols
from polysem.evaluation.protocols import ModelScores
from polysem.evaluation.protocols.judgements import ndcg, read_judgements
from polysem.evaluation.score_matrix import ScoreMatrix

NAMES = ["11_a.jpg", "22_b.jpg", "33_c.jpg"]
EXPERTS = [
    ("11_a.jpg", "22_b.jpg#0", 3, 3, 3),  # a false negative
    ("11_a.jpg", "33_c.jpg#1", 1, 1, 2),
    ("22_b.jpg", "33_c.jpg#1", 2, 3, 3),
    ("33_c.jpg", "22_b.jpg#0", 1, 1, 1),
]
CROWD = [
    ("11_a.jpg", "22_b.jpg#0", 1, 3, 0),
    ("11_a.jpg", "33_c.jpg#1", 0.333333333333, 1, 2),
    ("22_b.jpg", "33_c.jpg#1", 0.5, 2, 2),
    ("33_c.jpg", "22_b.jpg#0", 0, 0, 3),
]


def gallery(names=NAMES, folder=""):
    items = [
        Item(folder + name, Media(Path(), folder + name), (f"{name} one", f"{name} two"), (), "test") for name in names
    ]
    return Collection("flickr8k", "image", items)


def write(path, rows):
    path.write_text("\n".join("\t".join(str(cell) for cell in row) for row in rows) + "\n")
    return path


def measured(path, scores=None, collection=None, **options):
    protocol = protocols.find("judgements").with_options(annotations=path)
    collection = gallery() if collection is None else collection
    scores = np.random.default_rng(0).standard_normal((3, 6)) if scores is None else scores
    return protocol.measure(ModelScores("toy", ScoreMatrix(scores)), protocol.gallery(collection), "test", **options)


def test_marks_of_experts_become_gains(tmp_path):
    found = read_judgements(write(tmp_path / "marks.txt", EXPERTS))
    assert found.who == "experts"
    np.testing.assert_allclose(found.gains, [2, 1 / 3, 5 / 3, 0])
    assert found.right.tolist() == [True, False, False, False]
    assert found.captions[1] == ("33_c.jpg", 1)


def test_shares_of_the_crowd_become_gains(tmp_path):
    found = read_judgements(write(tmp_path / "marks.txt", CROWD))
    assert found.who == "crowd"
    np.testing.assert_allclose(found.gains, [1, 1 / 3, 0.5, 0])
    assert found.right.tolist() == [True, False, False, False]


def test_a_single_line_tells_the_files_apart(tmp_path):
    for row in EXPERTS:
        assert read_judgements(write(tmp_path / "one.txt", [row])).who == "experts"
    for row in CROWD:
        assert read_judgements(write(tmp_path / "one.txt", [row])).who == "crowd"


def slow_ndcg(gains, scores):
    order = sorted(range(len(gains)), key=lambda place: (-scores[place], gains[place]))

    def dcg(values):
        return sum(value / math.log2(place + 2) for place, value in enumerate(values))

    return 100 * dcg([gains[place] for place in order]) / dcg(sorted(gains, reverse=True))


def test_ndcg_is_its_definition():
    rng = np.random.default_rng(0)
    queries = rng.integers(0, 8, 60)
    gains, scores = rng.integers(0, 4, 60) / 3, rng.integers(0, 5, 60) / 5  # with ties
    asked, found = ndcg(queries, gains, scores)
    assert sorted(asked.tolist()) == asked.tolist()
    for query, value in zip(asked, found, strict=True):
        own = queries == query
        assert abs(value - slow_ndcg(gains[own].tolist(), scores[own].tolist())) < 1e-9


def test_a_query_whose_answers_are_alike_measures_nothing():
    asked, found = ndcg(np.array([0, 0, 1, 2, 2]), np.array([1.0, 1, 3, 0, 2]), np.array([0.1, 0.2, 0.3, 0.4, 0.5]))
    assert asked.tolist() == [2]
    assert found.tolist() == [100.0]
    assert len(ndcg(np.empty(0, int), np.empty(0), np.empty(0))[0]) == 0


def test_a_false_negative_counts_as_found_beside_the_uncorrected_figure(tmp_path):
    scores = np.full((3, 6), 0.0) + np.arange(6) / 100
    scores[[0, 0, 1, 1, 2, 2], np.arange(6)] = 1.0  # everybody finds their own …
    scores[0, 2] = 2.0  # … but the first image and the third caption find each other first
    found = measured(write(tmp_path / "experts.txt", EXPERTS), scores)
    assert found.metrics["t2i"]["r1"] == 100.0
    assert found.metrics["i2t"]["r1"] == 100.0
    assert abs(found.metrics["uncorrected"]["t2i"]["r1"] - 100 * 5 / 6) < 1e-9
    assert abs(found.metrics["uncorrected"]["i2t"]["r1"] - 100 * 2 / 3) < 1e-9
    assert found.metrics["rsum"] > found.metrics["uncorrected"]["rsum"]
    assert "4 pairs judged by experts, 1 of them new positives" in found.stamp.remarks


def test_graded_relevance_goes_both_ways(tmp_path):
    scores = np.random.default_rng(3).standard_normal((3, 6))
    found = measured(write(tmp_path / "crowd.txt", CROWD), scores)
    # Caption 2 is judged with images 0 and 2, caption 5 with images 0 and 1; only image 0 with two captions.
    expected = [slow_ndcg([1, 0], scores[[0, 2], 2]), slow_ndcg([1 / 3, 0.5], scores[[0, 1], 5])]
    assert abs(found.metrics["judged_t2i"]["ndcg"] - np.mean(expected)) < 1e-9
    assert found.metrics["judged_t2i"]["queries"] == 2
    assert abs(found.metrics["judged_i2t"]["ndcg"] - slow_ndcg([1, 1 / 3], scores[0, [2, 5]])) < 1e-9
    assert found.per_query["judged_t2i"].clusters.tolist() == [1, 2]
    np.testing.assert_allclose(found.per_query["judged_t2i"].values["ndcg"], expected)


def test_items_in_a_folder_are_known_by_their_file_name(tmp_path):
    path = write(tmp_path / "experts.txt", EXPERTS)
    assert measured(path, collection=gallery(folder="images/")).metrics == measured(path).metrics


def test_pairs_outside_the_gallery_are_left_out_and_counted(tmp_path):
    rows = [*EXPERTS, ("99_z.jpg", "22_b.jpg#0", 4, 4, 4), ("11_a.jpg", "22_b.jpg#4", 4, 4, 4)]
    found = measured(write(tmp_path / "experts.txt", rows))
    assert "2 judged pairs outside the gallery left out" in found.stamp.remarks
    assert found.metrics == measured(write(tmp_path / "fewer.txt", EXPERTS)).metrics


def test_a_gallery_that_holds_few_of_the_pairs_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"4 of 4 judged pairs are not.*11_a.jpg with 22_b.jpg#0.*--split test"):
        measured(write(tmp_path / "experts.txt", EXPERTS), collection=gallery(["1.jpg", "2.jpg", "3.jpg"]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no judgements"),
        ("11_a.jpg 22_b.jpg#0 1 1 1\n", "line 1: expected an image, a caption such as"),
        ("11_a.jpg\t22_b.jpg\t1\t1\t1\n", "line 1: expected an image"),
        ("11_a.jpg\t22_b.jpg#0\t1\t1\t7\n", "neither three marks from 1 to 4 nor a share"),
    ],
)
def test_a_file_that_holds_no_judgements_is_explained(tmp_path, text, message):
    (tmp_path / "odd.txt").write_text(text)
    with pytest.raises(InputError, match=message):
        read_judgements(tmp_path / "odd.txt")


def test_the_file_must_be_given_and_be_there(tmp_path):
    with pytest.raises(InputError, match=r"--option annotations=FILE, ExpertAnnotations.txt or CrowdFlowerAnn"):
        measured(None)
    with pytest.raises(InputError, match=r"nowhere.txt cannot be read"):
        measured(tmp_path / "nowhere.txt")
