"""What must hold for every pooling, whatever it computes."""

import pytest
import torch

from polysem import LocalFeatures, PolysemError, pooling
from support import alone, batch, shaken

DIM = 12
SETTINGS = {
    "mean": {"name": "mean"},
    "max": {"name": "max"},
    "kmax": {"name": "kmax", "k": 3},
    "softpool": {"name": "softpool"},
    "gpo": {"name": "gpo"},
    "gpo-mlp": {"name": "gpo", "generator": "mlp"},
    "gpo-transformer": {"name": "gpo", "generator": "transformer"},
    "gpo-interpolation": {"name": "gpo", "generator": "interpolation"},
    "gpo-index": {"name": "gpo", "position": "index"},
    "gpo-per-dimension": {"name": "gpo", "per_dimension": True},
    "gpo-feature-input": {"name": "gpo", "feature_input": True},
    "gpo-everything": {"name": "gpo", "feature_input": True, "per_dimension": True, "position": "index"},
    "adpool": {"name": "adpool"},
    "adpool-paper": {"name": "adpool", "variant": "paper"},
    "adpool-token": {"name": "adpool", "embedding_level": False},
    "adpool-embedding": {"name": "adpool", "token_level": False},
    "adpool-unbalanced": {"name": "adpool", "balance": False},
    "fspool": {"name": "fspool"},
    "lip": {"name": "lip"},
    "adapool": {"name": "adapool"},
    "seq2seq": {"name": "seq2seq"},
    "gcn": {"name": "gcn", "layers": 2},
    "selfattention": {"name": "selfattention"},
}
ORDERED = {"seq2seq", "gcn"}

every_pooling = pytest.mark.parametrize("setting", SETTINGS)


def build(setting: str) -> pooling.Pooling:
    torch.manual_seed(0)
    return shaken(pooling.build(dim=DIM, **SETTINGS[setting]))


def test_every_registered_pooling_is_under_this_contract():
    assert {knobs["name"] for knobs in SETTINGS.values()} == set(pooling.names())


@every_pooling
def test_an_embedding_does_not_change_with_its_batch(setting):
    part, features = build(setting), batch(DIM)
    together = part(features)
    for item in range(len(features)):
        torch.testing.assert_close(together[item], part(alone(features, item))[0], atol=1e-5, rtol=0)


@every_pooling
@pytest.mark.parametrize("garbage", [0.0, -1e9, 1e30, float("nan"), float("inf")])
def test_padding_contents_never_matter_nor_receive_gradient(setting, garbage):
    part, features = build(setting), batch(DIM)
    values = features.values.masked_fill(~features.mask[..., None], garbage).requires_grad_()
    pooled = part(LocalFeatures(values, features.mask))
    torch.testing.assert_close(pooled, part(features), atol=0, rtol=0)
    pooled.sum().backward()
    assert values.grad[~features.mask].abs().sum() == 0
    assert values.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in part.parameters())


@every_pooling
def test_padding_may_stand_anywhere(setting):
    part, features = build(setting), batch(DIM)
    moved = LocalFeatures(features.values.roll(2, 1), features.mask.roll(2, 1))
    in_order = LocalFeatures(features.values[:1], features.mask[:1])
    rows = slice(1, 4)  # the first item fills its row, so rolling it changes the order of its tokens
    torch.testing.assert_close(part(moved)[rows], part(features)[rows], atol=1e-5, rtol=0)
    torch.testing.assert_close(part(in_order), part(features)[:1], atol=1e-5, rtol=0)


@every_pooling
def test_the_order_of_tokens_matters_only_where_it_should(setting):
    part, features = build(setting), alone(batch(DIM), 0)
    order = torch.randperm(features.values.shape[1], generator=torch.Generator().manual_seed(1))
    shuffled = part(LocalFeatures(features.values[:, order], features.mask))
    difference = (shuffled - part(features)).abs().max()
    assert difference > 1e-3 if setting in ORDERED else difference < 1e-5


@every_pooling
def test_an_item_of_one_token_works_in_training_too(setting):
    part = build(setting).train()
    pooled = part(LocalFeatures.from_lengths(torch.randn(1, 1, DIM), [1]))
    assert pooled.shape == (1, DIM)
    assert pooled.isfinite().all()


@every_pooling
def test_a_batch_may_be_pooled_in_parts_and_learned_from_as_a_whole(setting):
    part = build(setting).train()
    items = [alone(batch(DIM), item) for item in (0, 1)]
    values = [item.values.requires_grad_() for item in items]
    torch.cat([part(item) for item in items]).sum().backward()
    assert all(value.grad.isfinite().all() for value in values)


@every_pooling
def test_an_item_of_padding_alone_is_refused(setting):
    with pytest.raises(PolysemError, match=r"Items \[1\] consist of padding alone"):
        build(setting)(LocalFeatures.from_lengths(torch.randn(2, 3, DIM), [2, 0]))


@every_pooling
def test_features_of_another_width_are_refused(setting):
    with pytest.raises(PolysemError, match="width 12, got 5"):
        build(setting)(batch(5))


@every_pooling
def test_nan_in_a_real_token_is_refused(setting):
    features = batch(DIM)
    features.values[1, 2, 3] = float("nan")
    with pytest.raises(PolysemError, match="item 1, token 2"):
        build(setting)(features)


@every_pooling
def test_saved_equals_loaded(setting, tmp_path):
    part, features = build(setting), batch(DIM)
    torch.save({"config": dict(part.config), "state": part.state_dict()}, tmp_path / "part.pt")
    saved = torch.load(tmp_path / "part.pt", weights_only=True)
    loaded = pooling.build(**saved["config"]).eval()
    loaded.load_state_dict(saved["state"])
    assert torch.equal(loaded(features), part(features))


@every_pooling
def test_gradients_are_right(setting):
    part = build(setting).double()
    features = batch(DIM, lengths=(3, 1), dtype=torch.float64)

    def pool(values):
        return part(LocalFeatures(values, features.mask))

    values = features.zero_padding().values.requires_grad_()
    assert torch.autograd.gradcheck(pool, (values,), eps=1e-6, atol=1e-5)


@every_pooling
@pytest.mark.parametrize("kind", ["zeros", "duplicates", "ties"])
def test_gradients_are_finite_where_values_coincide(setting, kind):
    part = build(setting)
    values = torch.zeros(2, 5, DIM) if kind == "zeros" else torch.randn(1, 1, DIM).expand(2, 5, DIM).clone()
    if kind == "ties":
        values = torch.randint(-1, 2, (2, 5, DIM)).float()
    values.requires_grad_()
    part(LocalFeatures.from_lengths(values, [5, 3])).square().sum().backward()
    assert values.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in part.parameters() if p.grad is not None)


@pytest.mark.slow
@every_pooling
def test_it_learns(setting):
    """Training on one batch with the part's own weights and the inputs lowers a loss."""
    part, features = build(setting).train(), batch(DIM)
    target = torch.randn(4, DIM, generator=torch.Generator().manual_seed(2))
    values = features.zero_padding().values.requires_grad_()
    optimiser = torch.optim.Adam([values, *part.parameters()], lr=0.05)
    losses = []
    for _ in range(30):
        loss = (part(LocalFeatures(values, features.mask)) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@every_pooling
def test_it_runs_under_autocast(setting, needs_bf16):
    part, features = build(setting).train(), batch(DIM)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = part(features)
    assert rough.isfinite().all()
    assert (rough.float() - part(features)).abs().max() < 0.3


@every_pooling
def test_what_is_not_local_features_is_refused(setting):
    with pytest.raises(PolysemError, match=r"takes LocalFeatures, got float32 of shape \(2, 3, 12\)"):
        build(setting)(torch.zeros(2, 3, DIM))


@every_pooling
@pytest.mark.parametrize("lengths", [(9, 4, 1, 6), (5, 5)])
def test_weights_times_values_are_the_pooled_vector(setting, lengths):
    part, features = build(setting), batch(DIM, lengths)
    weights = part.weights(features)
    if setting in ("seq2seq", "gcn", "selfattention"):
        assert weights is None
        return
    assert weights.shape == features.values.shape
    assert not weights[~features.mask].any()
    torch.testing.assert_close((weights * features.zero_padding().values).sum(1), part(features), atol=1e-5, rtol=1e-5)
    shares = pooling.base.coefficient_shares(weights)
    torch.testing.assert_close(shares.sum(1), torch.ones(len(features)))


@pytest.mark.parametrize("name", ["gpo", "adpool", "fspool", "softpool"])
def test_weights_of_official_variants(name):
    torch.manual_seed(0)
    part, features = shaken(pooling.build(name, dim=DIM, variant="official")), batch(DIM, (6, 6))
    weights = part.weights(features)
    torch.testing.assert_close((weights * features.values).sum(1), part(features), atol=1e-5, rtol=1e-5)
