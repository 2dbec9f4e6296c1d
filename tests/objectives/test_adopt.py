import pytest
import torch

from polysem import objectives
from support import unit

EYE = torch.eye(128, dtype=torch.bool)


def stage(alignment, seed=0):
    """Scores of a batch of 128 whose matches share `alignment` of their direction."""
    image = unit(128, 256, seed=seed)
    text = torch.nn.functional.normalize(alignment * image + (1 - alignment) * unit(128, 256, seed=seed + 1), dim=-1)
    return image @ text.t()


def test_annealed_takes_many_negatives_early_and_four_or_five_late():
    part = objectives.build("adopt")
    counts = [part(stage(alignment), EYE).info["k"] for alignment in (0.0, 0.05, 0.1, 0.3, 0.7)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 100
    assert 4 <= counts[-1] <= 5


def test_annealed_keeps_all_negatives_for_a_collapsed_or_cone_shaped_space():
    part = objectives.build("adopt")
    assert part(torch.full((128, 128), 0.7), EYE).info["k"] == 127
    assert part(0.7 + 0.01 * stage(0.0), EYE).info["k"] > 100


def test_annealed_does_not_depend_on_the_scale_of_the_scores():
    part = objectives.build("adopt")
    scores = stage(0.1)
    assert part(scores, EYE).info["k"] == part(0.5 * scores + 0.3, EYE).info["k"]


def test_the_printed_equation_keeps_most_negatives_of_a_trained_model():
    assert objectives.build("adopt", variant="paper")(stage(0.7), EYE).info["k"] > 90


@pytest.mark.parametrize(("k", "expected"), [(1, 1), (7, 7), (10_000, 127)])
def test_a_constant_number_stays_within_the_batch(k, expected):
    assert objectives.build("adopt", k=k)(stage(0.1), EYE).info["k"] == expected


def test_a_random_number_is_drawn_for_each_batch_from_the_seeded_generator():
    part = objectives.build("adopt", k="random")
    draws = []
    for _ in range(2):
        torch.manual_seed(5)
        draws.append([part(stage(0.1), EYE).info["k_i2t"] for _ in range(20)])
    assert draws[0] == draws[1]
    assert len(set(draws[0])) > 10
    assert all(1 <= k <= 127 for k in draws[0])


def test_all_negatives_and_no_margin_is_infonce():
    scores = stage(0.1)
    chosen = objectives.build("adopt", k=127)(scores, EYE).total
    torch.testing.assert_close(chosen, objectives.build("infonce")(scores, EYE).total)


def test_the_released_formula_survives_a_negative_sum():
    """There the released code raises a negative number to a fraction and dies."""
    part = objectives.build("adopt", variant="official")
    scores = torch.full((4, 4), 3.0) - 6.0 * torch.eye(4)
    assert part(scores, torch.eye(4, dtype=torch.bool)).info["k"] == 3


def captions(images, per_image):
    """A batch of images with several captions each, as DivE takes them."""
    return torch.eye(images, dtype=torch.bool).repeat_interleave(per_image, dim=1)


@pytest.mark.parametrize("variant", ["paper", "official", "annealed"])
def test_with_several_captions_each_direction_counts_its_own_candidates(variant):
    positives = captions(50, 5)
    part = objectives.build("adopt", variant=variant)
    info = part(torch.rand(50, 250) * 0.02, positives).info
    assert info["k_i2t"] / 250 == pytest.approx(info["k_t2i"] / 50, abs=0.05)


def test_k_never_counts_siblings_and_random_k_uses_the_whole_range():
    positives, scores = captions(50, 5), torch.rand(50, 250)
    info = objectives.build("adopt", k=10_000)(scores, positives).info
    assert (info["k_i2t"], info["k_t2i"]) == (245, 49)
    part = objectives.build("adopt", k="random")
    draws = [part(scores, positives).info["k_i2t"] for _ in range(60)]
    assert max(draws) > 150
    assert min(draws) < 100


def test_scores_far_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"near \[-1, 1\]"):
        objectives.build("adopt", variant="official")(torch.full((3, 3), -1e4), torch.eye(3, dtype=torch.bool))
    loss = objectives.build("adopt", variant="paper")(torch.full((3, 3), 200.0), torch.eye(3, dtype=torch.bool))
    assert loss.total.isfinite()
