import copy
import pickle

import pytest
import torch

from polysem import LocalFeatures, PolysemError, pooling
from polysem.pooling import gpo
from support import assert_close, assert_gradient, batch, cases, load_case, shaken


@pytest.mark.parametrize("name", cases("gpo"))
@pytest.mark.parametrize("variant", ["paper", "official"])
def test_parity_with_the_released_code(name, variant):
    case = load_case(name)
    features = case.features
    part = pooling.build("gpo", dim=features.dim, variant=variant).load_official(case.weight)
    pooled = part(features)
    assert_close(pooled, case.output["pooled"], atol=2e-5)
    assert_close(part.coefficients(features), case.output["weights"], atol=2e-6)
    (pooled * case.input["coef"]).sum().backward()
    assert_gradient(features.values.grad, case.grad["features"])
    parameters = dict(part.named_parameters())
    for theirs, ours in part.official_keys.items():
        assert_gradient(parameters[ours].grad, case.grad[f"weight/{theirs}"])


def test_it_has_as_many_weights_as_the_released_module():
    assert sum(p.numel() for p in pooling.build("gpo").parameters()) == 12_704


@pytest.mark.parametrize("knobs", [{}, {"generator": "mlp"}, {"generator": "interpolation"}, {"per_dimension": True}])
def test_coefficients_sum_to_one_and_stop_at_the_length(knobs):
    features = batch(12)
    theta = shaken(pooling.build("gpo", dim=12, **knobs)).coefficients(features)
    torch.testing.assert_close(theta.sum(1), torch.ones_like(theta.sum(1)))
    assert theta[~features.mask].abs().sum() == 0


def test_remembered_coefficients_equal_fresh_ones():
    part, features = shaken(pooling.build("gpo")), batch(12)
    fresh = part(features)
    with torch.no_grad():
        first, second = part(features), part(features)
    assert torch.equal(first, fresh)
    assert torch.equal(second, fresh)


def test_a_longer_batch_does_not_confuse_the_cache():
    part = shaken(pooling.build("gpo"))
    short, long = batch(12, (3, 2)), batch(12, (9, 3, 2), seed=1)
    with torch.no_grad():
        part(short)
        remembered = part(long)
    assert torch.equal(remembered, part(long))


@pytest.mark.parametrize(
    "change",
    [
        lambda part: torch.optim.AdamW(part.parameters(), lr=0.1, fused=True).step(),
        lambda part: torch.optim.SGD(part.parameters(), lr=0.1).step(),
        lambda part: part.load_state_dict({k: v + 0.3 for k, v in part.state_dict().items()}),
        lambda part: setattr(part.generator.score.weight, "data", part.generator.score.weight.data + 0.5),
        lambda part: part.double(),
    ],
)
def test_the_memory_forgets_when_the_weights_change(change):
    part, features = shaken(pooling.build("gpo")), batch(12)
    part(features).sum().backward()
    with torch.no_grad():
        before = part(features)
        change(part)
        after = part(features)
    fresh = part(features)  # with gradients on, nothing is remembered
    torch.testing.assert_close(after, fresh.detach(), atol=1e-6, rtol=0)
    if part.generator.score.weight.dtype == torch.float32:
        assert not torch.allclose(after, before, atol=1e-6)


def test_the_generator_runs_once_per_distinct_length():
    part = pooling.build("gpo")
    seen = []
    part.generator.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].tolist()))
    part(batch(12, (5, 3, 5, 3, 5)))
    assert seen == [[3, 5]]


def test_a_learned_table_of_positions_has_an_end():
    part = pooling.build("gpo", position="index", max_length=8)
    with pytest.raises(PolysemError, match=r"9 tokens.*ends at 8.*max_length=9"):
        part(batch(12, (9,)))


def test_features_below_the_released_sentinel():
    """The released code sorts padding at -10,000, above a real -20,000; ours has no such floor."""
    features = LocalFeatures.from_lengths(torch.tensor([[[5.0], [-2e4], [0.0]]]), [2])
    paper, official = pooling.build("gpo"), pooling.build("gpo", variant="official")
    official.load_state_dict(paper.state_dict())
    theta = paper.coefficients(features)[0]
    torch.testing.assert_close(paper(features)[0, 0], theta[0] * 5 - theta[1] * 2e4)
    assert not torch.allclose(paper(features), official(features))


def test_it_can_learn_max_pooling():
    torch.manual_seed(0)
    part, target = pooling.build("gpo"), pooling.build("max")
    optimiser = torch.optim.Adam(part.parameters(), lr=0.01)
    for step in range(150):
        features = batch(16, (12, 7, 4), seed=step)
        loss = (part(features) - target(features)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert part.coefficients(batch(16, (10,)))[0, 0] > 0.95


@pytest.mark.parametrize("generator", ["bigru", "mlp", "transformer", "interpolation"])
def test_what_is_remembered_does_not_depend_on_autocast(generator, needs_bf16):
    part, features = shaken(pooling.build("gpo", generator=generator)), batch(12)
    fresh = part(features)
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            part(features)
        torch.testing.assert_close(part(features), fresh.detach(), atol=1e-5, rtol=0)


def test_outside_training_the_generator_runs_once_for_a_length():
    part, features = shaken(pooling.build("gpo")), batch(12)
    runs = []
    part.generator.register_forward_hook(lambda *_: runs.append(1))
    with torch.no_grad():
        part(features)
        part(features)
    assert len(runs) == 1


def test_copies_and_pickles_carry_no_cache():
    part, features = shaken(pooling.build("gpo", dim=12, per_dimension=True)), batch(12, (200, 100))
    before = len(pickle.dumps(part))
    with torch.no_grad():
        part(features)
    assert len(pickle.dumps(part)) == before
    copied = copy.deepcopy(part)
    assert copied._cache._theta == {}
    assert torch.equal(copied(features), part(features))


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(gpo, "_CACHE_VALUES", 50)
    part = shaken(pooling.build("gpo"))
    with torch.no_grad():
        for length in range(1, 60):
            part(batch(4, (length,)))
    assert sum(row.numel() for row in part._cache._theta.values()) <= 50 + 59


def test_a_learned_table_counts_tokens_not_padding():
    part = shaken(pooling.build("gpo", position="index", max_length=8))
    tight, wide = batch(12, (7, 3)), batch(12, (7, 3, 1))
    padded = LocalFeatures(
        torch.nn.functional.pad(tight.values, (0, 0, 0, 20)), torch.nn.functional.pad(tight.mask, (0, 20))
    )
    torch.testing.assert_close(part(padded), part(tight), atol=1e-6, rtol=0)
    assert part(wide).isfinite().all()
