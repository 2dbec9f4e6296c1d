import torch

from polysem.evaluation import ranks, recalls, retrieval
from support import load_case


def slow_rank(scores: list[float], positives: list[bool]) -> int:
    best = max(s for s, p in zip(scores, positives, strict=True) if p)
    return sum(s >= best for s, p in zip(scores, positives, strict=True) if not p)


def test_against_counting_one_by_one():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 5, (40, 30), generator=generator).float()  # many ties
    positives = torch.rand(40, 30, generator=generator) < 0.1
    positives[:, 3] = True
    expected = [slow_rank(s, p) for s, p in zip(scores.tolist(), positives.tolist(), strict=True)]
    assert ranks(scores, positives).tolist() == expected


def test_ties_count_against_the_model():
    scores = torch.ones(3, 12)
    positives = torch.zeros(3, 12, dtype=torch.bool)
    positives[:, 0] = True
    assert ranks(scores, positives).tolist() == [11, 11, 11]


def test_blocks_do_not_matter(monkeypatch):
    scores, positives = torch.rand(50, 20), torch.eye(50, 20, dtype=torch.bool) | (torch.arange(20) == 3)
    whole = ranks(scores, positives)
    monkeypatch.setattr("polysem.evaluation.recall._BLOCK", 7)
    assert torch.equal(ranks(scores, positives), whole)


def test_recalls_are_per_cent():
    assert recalls(torch.tensor([0, 3, 7, 40])) == {"r1": 25.0, "r5": 50.0, "r10": 75.0}


def test_the_released_recalls():
    case = load_case("recall_50_images")
    scores = case.input["similarity"]
    found = retrieval(scores, torch.arange(250) // 5)
    for way in ("i2t", "t2i"):
        assert list(found[way].values()) == case.output[way][:3].tolist()
    assert abs(found["rsum"] - float(case.output["rsum"])) < 1e-9


def test_an_image_without_texts_is_no_query():
    scores = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    assert retrieval(scores, torch.tensor([0, 1]))["i2t"]["r1"] == 100.0


def test_scores_that_are_no_numbers_are_no_hits():
    found = retrieval(torch.full((40, 40), float("nan")), torch.arange(40))
    assert found["rsum"] == 0
