import numpy as np
import torch

from polysem.evaluation import compute_recalls
from support import load_case


def test_the_released_recalls():
    case = load_case("recall_50_images")
    scores = case.input["similarity"]
    found = compute_recalls(scores, np.arange(250) // 5)
    for way in ("i2t", "t2i"):
        np.testing.assert_allclose(list(found[way].values()), case.output[way][:3], rtol=0, atol=1e-9)
    assert abs(found["rsum"] - float(case.output["rsum"])) < 1e-9


def test_an_image_without_texts_is_no_query():
    scores = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    assert compute_recalls(scores, np.array([0, 1]))["i2t"]["r1"] == 100.0


def test_scores_that_are_no_numbers_are_no_hits():
    found = compute_recalls(torch.full((40, 40), float("nan")), np.arange(40))
    assert found["rsum"] == 0
    half = torch.eye(40)
    half[:20] = float("nan")
    assert compute_recalls(half, np.arange(40))["i2t"]["r1"] == 50.0
