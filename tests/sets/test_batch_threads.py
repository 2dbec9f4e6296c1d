"""Fast paths of the set predictors against the obvious ones."""

import itertools

import pytest
import torch

from polysem import sets
from polysem.sets import batch_threads
from polysem.sets.slots import Competition, SlotAttention
from support import batch, shaken

SMALL = {"heads": 2, "head_dim": 6, "ff_mult": 2}


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def attended(plan, how, positions, shared_slots):
    torch.manual_seed(0)
    attention = shaken(SlotAttention(dim=8, input_dim=10, heads=2, head_dim=6, dropout=0.0))
    features = batch(10)
    x = features.values.masked_fill(~features.mask[..., None], 0.0).requires_grad_()
    slots = torch.randn(1 if shared_slots else 4, 3, 8).requires_grad_()
    where = torch.randn_like(x) if positions else None
    update, seen = attention(slots, attention.read(x, where, plan), features.mask, how)
    (update * torch.linspace(-1, 1, update.numel()).view_as(update)).sum().backward()
    return [update, seen, x.grad, slots.grad, *(weight.grad for weight in attention.parameters())]


@pytest.mark.parametrize("plan", ["folded", "composed"])
@pytest.mark.parametrize("how", [Competition("slots"), Competition("tokens"), Competition("slots", True)], ids=str)
@pytest.mark.parametrize(("positions", "shared_slots"), list(itertools.product([False, True], repeat=2)))
def test_every_plan_computes_the_same(plan, how, positions, shared_slots):
    found = attended(plan, how, positions, shared_slots)
    for one, other in zip(found, attended("projected", how, positions, shared_slots), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_the_cheapest_plan_is_taken():
    wide = SlotAttention(dim=1024, input_dim=1024, heads=4, head_dim=512, dropout=0.0)
    narrow = SlotAttention(dim=1024, input_dim=300, heads=4, head_dim=512, dropout=0.0)
    assert wide.plan(items=100, tokens=49, slots=16) == "folded"
    assert wide.plan(items=100, tokens=8, slots=16) == "projected"
    assert narrow.plan(items=500, tokens=17, slots=16) == "composed"
    assert narrow.plan(items=1, tokens=12, slots=16) == "projected"


def predicted(part, x, mask, summary):
    given = x.clone().requires_grad_()
    part.zero_grad()
    found = part(type(batch())(given, mask), summary)
    (found.vectors.square().sum() + found.residual.sum() + found.attention_steps.square().sum()).backward()
    gradients = [given.grad, *(weight.grad for weight in part.parameters())]
    return [found.vectors, found.residual, found.attention, found.attention_steps], gradients


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", ["slots", "transformer"])
def test_parts_of_a_batch_on_threads_of_their_own_make_the_whole(name, monkeypatch):
    part = shaken(sets.build(name, dim=8, **SMALL))
    features = batch(8, tuple(1 + i % 7 for i in range(45)))
    summary = torch.randn(45, 8)
    split, gradients = predicted(part, features.values, features.mask, summary)
    monkeypatch.setattr(batch_threads, "_SMALLEST", 1000)
    whole, expected = predicted(part, features.values, features.mask, summary)
    for found, wanted in zip((*split, *gradients), (*whole, *expected), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("learned", [True, False])
def test_training_with_dropout_is_reproducible(learned):
    part = sets.build("slots", dim=8, dropout=0.3, learned_slots=learned, **SMALL).train()
    features, summary = batch(8, (5,) * 64), torch.randn(64, 8)
    runs = []
    for _ in range(5):
        torch.manual_seed(7)
        runs.append(predicted(part, features.values, features.mask, summary))
    for outputs, gradients in runs[1:]:
        for found, first in zip((*outputs, *gradients), (*runs[0][0], *runs[0][1]), strict=True):
            assert torch.equal(found, first)
    assert not torch.equal(runs[0][0][0], predicted(part, features.values, features.mask, summary)[0][0])


@pytest.mark.usefixtures("two_threads")
def test_both_parts_of_a_batch_draw_their_own_dropout():
    part = sets.build("slots", dim=8, dropout=0.5, **SMALL).train()
    one = batch(8, (5,)).values
    found = part(type(batch())(one.expand(64, -1, -1), torch.ones(64, 5, dtype=torch.bool)), torch.zeros(64, 8)).vectors
    assert found.flatten(1).unique(dim=0).shape[0] == 64


@pytest.mark.usefixtures("two_threads")
def test_embedding_draws_no_random_number_and_frozen_weights_get_no_gradient():
    part = sets.build("slots", dim=8, dropout=0.5, **SMALL).eval().requires_grad_(False)
    features, state = batch(8, (5,) * 64), torch.get_rng_state()
    given = features.values.clone().requires_grad_()
    part(type(features)(given, features.mask), torch.zeros(64, 8)).vectors.sum().backward()
    with torch.no_grad():
        part(features, torch.zeros(64, 8))
    assert torch.equal(torch.get_rng_state(), state)
    assert given.grad is not None
    assert all(weight.grad is None for weight in part.parameters())
