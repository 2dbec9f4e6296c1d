"""Equalities over shapes that nobody would think to write down."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polysem import pooling, similarity
from support import alone, batch, shaken, unit

sizes = st.integers(1, 9)


@settings(max_examples=40, deadline=None)
@given(
    images=sizes,
    texts=sizes,
    k=sizes,
    size=sizes,
    budget_mb=st.floats(1e-7, 1e-2),
    name=st.sampled_from([name for name in similarity.names() if name != "cosine"]),  # of single vectors alone
)
def test_any_budget_gives_the_same_scores(images, texts, k, size, budget_mb, name):
    part = similarity.build(name)
    a, b = unit(images, k, 5), unit(texts, size, 5, seed=1)
    torch.testing.assert_close(part.scores(a, b, budget_mb=budget_mb), part.scores(a, b), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", pooling.names())
@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_any_lengths_leave_an_embedding_as_it_is_alone(name, lengths):
    torch.manual_seed(0)
    part = shaken(pooling.build(name, dim=8))
    features = batch(8, tuple(lengths))
    expected = torch.cat([part(alone(features, item)) for item in range(len(features))])
    torch.testing.assert_close(part(features), expected, atol=1e-5, rtol=0)
