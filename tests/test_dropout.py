import pytest
import torch

from polysem import cpu_blocks, dropout
from polysem.dropout import Dropout

MANY = 600_000


@pytest.fixture(params=[1, 2])
def threads_of_torch(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def dropped(seed=0, rate=0.1, x=None):
    torch.manual_seed(seed)
    return Dropout(rate)(torch.ones(MANY) if x is None else x)


@pytest.mark.usefixtures("threads_of_torch")
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.999])
def test_the_rate_is_kept_and_so_is_the_mean(rate):
    found = dropped(rate=rate)
    assert float((found == 0).float().mean()) == pytest.approx(rate, abs=0.003)
    assert float(found.mean()) == pytest.approx(1, abs=0.15 if rate > 0.9 else 0.01)
    assert found.unique().numel() == 2


def test_draws_follow_from_torchs_random_state_whatever_the_number_of_threads():
    before = torch.get_num_threads()
    found = []
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append(dropped())
    torch.set_num_threads(before)
    assert torch.equal(*found)
    assert not torch.equal(found[0], dropped(seed=1))
    torch.manual_seed(0)
    layer = Dropout(0.1)
    assert not torch.equal(layer(torch.ones(100)), layer(torch.ones(100)))


def test_blocks_draw_independently():
    kept = (dropped(rate=0.5) > 0).float()[: 4 * (1 << 17)].view(4, -1)
    correlation = torch.corrcoef(kept) - torch.eye(4)
    assert correlation.abs().max() < 0.01


def test_the_gradient_goes_where_the_value_went():
    x = torch.randn(37, 11, 5).requires_grad_()
    found = dropped(rate=0.4, x=x)
    upstream = torch.randn_like(found)
    found.backward(upstream)
    kept = found != 0
    scale = (found[kept] / x[kept]).mean().item()
    torch.testing.assert_close(x.grad, upstream * kept * scale)
    assert scale == pytest.approx(1 / 0.6, rel=1e-4)


def test_values_that_are_not_contiguous():
    x = torch.randn(8, 6).t()
    found = dropped(rate=0.5, x=x)
    assert found.shape == (6, 8)
    torch.testing.assert_close(found[found != 0], 2 * x[found != 0])


def test_outside_training_it_does_nothing_and_draws_nothing():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    x = torch.randn(3, generator=torch.Generator())
    assert Dropout(0.5).eval()(x) is x or torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_seeded_thread_draws_from_its_seed():
    def draw(seed):
        with dropout.use_seed(seed):
            return Dropout(0.5)(torch.ones(1000))

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    found = {}
    cpu_blocks.run([lambda s=s: found.update({s: draw(s)}) for s in (1, 2, 3)], torch.device("cpu"))
    assert all(torch.equal(found[seed], draw(seed)) for seed in found)


def test_other_precisions_use_torchs_own():
    torch.manual_seed(0)
    expected = torch.nn.Dropout(0.5)(torch.ones(50, dtype=torch.float64))
    assert torch.equal(dropped(rate=0.5, x=torch.ones(50, dtype=torch.float64)), expected)
