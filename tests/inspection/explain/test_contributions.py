"""Contributions sum to the score: every similarity, both directions."""

import pytest
import torch

from polysem import PolysemError, similarity
from polysem.inspection import decompose_score
from support import unit

SETTINGS = {
    "smooth_chamfer": {"name": "smooth_chamfer"},
    "smooth_chamfer-euclidean": {"name": "smooth_chamfer", "metric": "euclidean", "alpha": 3.0},
    "chamfer": {"name": "chamfer"},
    "mil": {"name": "mil"},
    "soft_maximum": {"name": "soft_maximum"},
    "match_probability": {"name": "match_probability"},
    "match_probability-pcme": {"name": "match_probability", "form": "pcme", "learnable": True},
    "cosine": {"name": "cosine"},
}
SIZES = [(4, 4), (1, 1), (4, 2), (1, 3)]


def test_every_registered_similarity_is_under_this_contract():
    assert {knobs["name"] for knobs in SETTINGS.values()} == set(similarity.names())


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("k", "size"), SIZES)
def test_they_sum_to_the_score_in_both_directions(setting, k, size):
    if setting == "cosine":
        k = size = 1
    alike = similarity.build(**SETTINGS[setting])
    image, text = unit(1, k, 8)[0], unit(1, size, 8, seed=1)[0]
    found = decompose_score(alike, image, text)
    expected = float(alike.scores(image[None], text[None]).detach())
    assert found.score == expected
    assert found.matrix.shape == (k, size)
    assert float(found.matrix.sum()) == pytest.approx(expected, abs=1e-6)
    if alike.symmetric:
        back = decompose_score(alike, text, image)
        assert float(back.matrix.sum()) == pytest.approx(expected, abs=1e-6)
        torch.testing.assert_close(back.matrix, found.transposed.matrix)
        torch.testing.assert_close(back.closeness, found.transposed.closeness)
    assert float(found.rows.sum()) == pytest.approx(float(found.columns.sum()), abs=1e-6)


def test_only_the_best_pair_contributes_to_mil():
    image, text = unit(1, 3, 8)[0], unit(1, 2, 8, seed=1)[0]
    matrix = decompose_score(similarity.build("mil"), image, text).matrix
    cosines = image @ text.t()
    assert int((matrix != 0).sum()) == 1
    assert matrix.abs().argmax() == cosines.argmax()


@pytest.mark.parametrize("given", [torch.ones(2, 3, 4), torch.ones(4), [[1.0]], torch.ones(2, 4, dtype=torch.long)])
def test_what_is_no_set_is_refused(given):
    with pytest.raises(PolysemError, match=r"\(elements, dim\)"):
        decompose_score(similarity.build("mil"), given, unit(1, 2, 4)[0])
