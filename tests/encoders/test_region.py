"""Region features: against the authors' released code, then what their code gets wrong."""

import pytest
import torch

from polysem import LocalFeatures, PolysemError, encoders, pooling, sets
from polysem.masked_ops import normalise
from support import assert_close, batch, cases, load_case, shaken


def split(weight, prefix):
    """The tensors under a prefix, without it, and the others."""
    under = {name.removeprefix(prefix): tensor for name, tensor in weight.items() if name.startswith(prefix)}
    return under, {name: tensor for name, tensor in weight.items() if not name.startswith(prefix)}


@pytest.mark.parametrize("name", ["vse_infty_region_padded", "vse_infty_region_unpadded"])
def test_vse_infty(name):
    case = load_case(name)
    gpo, own = split(case.weight, "gpool.")
    encoder = encoders.build("region", input_dim=20, dim=16).load_official(own).eval()
    pool = pooling.build("gpo", dim=16).load_official(gpo).eval()
    assert_close(normalise(pool(encoder(case.features))), case.output["embedding"], atol=2e-6)


def test_vse_infty_in_training_lets_padding_into_its_statistics():
    case = load_case("vse_infty_region_train")
    gpo, own = split(case.weight, "gpool.")
    encoder = encoders.build("region", input_dim=20, dim=16, variant="official").load_official(own).train()
    pool = pooling.build("gpo", dim=16).load_official(gpo)
    assert_close(normalise(pool(encoder(case.features))), case.output["embedding"], atol=2e-6)
    assert_close(encoder.norm.running_mean, case.output["after/mlp.bns.0.running_mean"], atol=1e-6)
    assert_close(encoder.norm.running_var, case.output["after/mlp.bns.0.running_var"], atol=1e-6)
    assert encoder.norm.num_batches_tracked == case.output["after/mlp.bns.0.num_batches_tracked"]


def test_vse_2ad():
    case = load_case("vse_2ad_region")
    adpool, own = split(case.weight, "pool.")
    encoder = encoders.build("region", input_dim=20, dim=16).load_official(own).eval()
    for variant, output in (("official", "embedding"), ("corrected", "embedding_alone")):
        pool = pooling.build("adpool", dim=16, variant=variant).load_official(adpool)
        assert_close(normalise(pool(encoder(case.features))), case.output[output], atol=2e-6)


@pytest.mark.parametrize("name", cases("dive_image_encoder"))
@pytest.mark.parametrize("variant", ["paper", "official"])
def test_dive(name, variant):
    case = load_case(name)
    spm, own = split(case.weight, "spm.")
    knobs = {"input_dim": 2048, "dim": 12, "form": "dive", "dropout": 0.1, "variant": variant}
    encoder = encoders.build("region", **knobs).load_official(own).eval()
    predictor = sets.build("slots", dim=12, variant=variant).load_official(spm).eval()
    local = encoder(case.features)
    found = predictor(local, pooling.build("max")(local))
    suffix = "" if variant == "official" else "_alone"
    assert_close(found.vectors, case.output[f"set{suffix}"], atol=1e-5)
    assert_close(found.residual, case.output[f"residual{suffix}"], atol=1e-5)


@pytest.mark.parametrize("form", ["vse_infty", "dive", "linear"])
def test_gradients_are_right(form):
    encoder = shaken(encoders.build("region", input_dim=5, dim=4, form=form)).double()
    features = batch(5, lengths=(3, 1), dtype=torch.float64)
    values = features.zero_padding().values.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: encoder(LocalFeatures(x, features.mask)).values, (values,))


@pytest.mark.parametrize("form", ["vse_infty", "dive"])
def test_training_statistics_see_real_tokens_only(form):
    padded = batch(6, lengths=(4, 2))
    rows = padded.values[padded.mask]
    by_batch, by_rows = (encoders.build("region", input_dim=6, dim=4, form=form).train() for _ in range(2))
    by_rows.load_state_dict(by_batch.state_dict())
    together = by_batch(padded).values[padded.mask]
    torch.testing.assert_close(together, by_rows(LocalFeatures.from_list([rows])).values[0])
    torch.testing.assert_close(by_batch.norm.running_mean, by_rows.norm.running_mean)


def test_a_single_token_trains():
    encoder = encoders.build("region", input_dim=6, dim=4).train()
    assert encoder(batch(6, lengths=(1,))).values.isfinite().all()


def test_the_projection_starts_as_in_the_papers():
    fc = encoders.build("region", input_dim=300, dim=200).fc
    bound = (6 / 500) ** 0.5
    assert fc.bias.abs().max() == 0
    assert 0.95 * bound < fc.weight.abs().max() <= bound


def test_a_summary_passes_through():
    features = batch(6, lengths=(3, 2))
    given = LocalFeatures(features.values, features.mask, torch.ones(2, 3))
    assert encoders.build("region", input_dim=6, dim=4)(given).summary is given.summary


def test_wrong_inputs_and_tensors_are_named():
    encoder = encoders.build("region", input_dim=6, dim=4)
    with pytest.raises(PolysemError, match="width 6, got 5"):
        encoder(batch(5))
    with pytest.raises(PolysemError, match="padding alone"):
        encoder(LocalFeatures.from_lengths(torch.randn(2, 3, 6), [2, 0]))
    with pytest.raises(PolysemError, match=r"'mlp.fc1.weight'.*mlp.layers.0"):
        encoder.load_official({"mlp.fc1.weight": torch.zeros(2, 6)})
    with pytest.raises(PolysemError, match="at least 2"):
        encoders.build("region", dim=1)
