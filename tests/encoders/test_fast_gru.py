import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from polysem.encoders.cpu import fast_gru


@pytest.fixture(autouse=True, params=[1, 2])
def threads_of_torch(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def ours(gru, x, lengths):
    packing = fast_gru.Packing(lengths)
    cells = packing.cells(x.shape[1])
    rows, last = fast_gru.run(gru, x.flatten(0, 1).index_select(0, cells), packing)
    states = rows.new_zeros(x.shape[0] * x.shape[1], rows.shape[1]).index_copy(0, cells, rows)
    return states.view(*x.shape[:2], -1), last


def torchs(gru, x, lengths):
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    states, last = gru(packed)
    states, _ = pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])
    forward, backward = states.chunk(2, dim=-1)
    return (forward + backward) / 2, last.mean(0)


def case(lengths, width=6, hidden=5):
    torch.manual_seed(0)
    gru = nn.GRU(width, hidden, batch_first=True, bidirectional=True)
    return gru, torch.randn(len(lengths), max(lengths) + 2, width), torch.tensor(lengths)


def gradients(way, used, gru, x, lengths):
    gru.zero_grad()
    given = x.clone().requires_grad_()
    states, last = way(gru, given, lengths)
    torch.manual_seed(1)
    weights = torch.randn_like(states), torch.randn_like(last)
    sum((out * weight).sum() for out, weight, use in zip((states, last), weights, used, strict=True) if use).backward()
    return [given.grad, *(weight.grad.clone() for weight in gru.parameters())]


LENGTHS = [(4, 1, 7, 4, 2), (1, 1), (3,), (5, 5, 5), tuple(range(1, 40))]


@pytest.mark.parametrize("lengths", LENGTHS)
def test_states_equal_torchs(lengths):
    gru, x, lengths = case(lengths)
    for found, expected in zip(ours(gru, x, lengths), torchs(gru, x, lengths), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("used", [(True, True), (True, False), (False, True)])
def test_gradients_equal_torchs(lengths, used):
    arguments = case(lengths)
    pairs = zip(gradients(ours, used, *arguments), gradients(torchs, used, *arguments), strict=True)
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_wide_states_too_and_the_same_every_time():
    arguments = case(LENGTHS[-1], width=30, hidden=128)
    first, again = (gradients(ours, (True, True), *arguments) for _ in range(2))
    for found, expected in zip(first, gradients(torchs, (True, True), *arguments), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_without_gradients_nothing_is_kept():
    gru, x, lengths = case((4, 2))
    with torch.no_grad():
        states, last = ours(gru, x, lengths)
    assert not states.requires_grad
    assert not last.requires_grad


def test_frozen_weights_pass_the_gradient_on():
    gru, x, lengths = case((4, 2))
    gru.requires_grad_(False)
    given = x.clone().requires_grad_()
    ours(gru, given, lengths)[1].sum().backward()
    assert given.grad.abs().sum() > 0
    assert all(weight.grad is None for weight in gru.parameters())


def test_a_weight_changed_between_forward_and_backward_is_noticed():
    gru, x, lengths = case((4, 2))
    loss = ours(gru, x, lengths)[1].sum()
    with torch.no_grad():
        gru.weight_hh_l0.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
