"""What the tests of the engine share: data with known difficulties, and search as slow and obvious as can be."""

import math

import numpy as np

SMOOTH = {"name": "smooth_chamfer", "alpha": 16.0}
WAYS = ["native", "portable", "torch"]
SETTING = {"native": "1", "portable": "portable", "torch": "0"}


def unit(x):
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def sets(n, K=4, D=24, *, seed=0, decay=0.7, dtype=np.float32):
    """Sets whose dimensions weigh i^-decay; decay 0 is the flat spectrum that no sketch can prune."""
    rng = np.random.default_rng(seed)
    weights = np.arange(1, D + 1) ** -decay
    centres = rng.standard_normal((n, 1, D))
    return unit((centres + 0.8 * rng.standard_normal((n, K, D))) * weights).astype(dtype)


SOFT = {"name": "soft_maximum", "alpha": 16.0}


def score(query, item, config, side="image"):
    """The formulas with Python's floats; inner products rounded once (fsum). side: of the item."""
    c = [[math.fsum(float(a) * float(b) for a, b in zip(x, y, strict=True)) for y in item] for x in query]
    columns = list(zip(*c, strict=True))
    if config["name"] == "mil":
        return max(max(row) for row in c)
    if config["name"] == "cosine":
        norms = [math.sqrt(math.fsum(float(a) ** 2 for a in x[0])) for x in (query, item)]
        return c[0][0] / (norms[0] * norms[1])
    if config["name"] == "soft_maximum":
        total, chosen = 0.0, columns if side == "text" else c
        for values in chosen:
            weights = [math.exp(config["alpha"] * (v - max(values))) for v in values]
            total += math.fsum(w * v for w, v in zip(weights, values, strict=True)) / math.fsum(weights)
        return total / len(chosen)
    if config["name"] == "chamfer":
        peak = max
    else:
        alpha = config["alpha"]

        def peak(values):
            top = max(values)
            return top + math.log(math.fsum(math.exp(alpha * (v - top)) for v in values)) / alpha

    return (sum(map(peak, c)) / len(c) + sum(map(peak, columns)) / len(columns)) / 2


def assert_is_the_truth(hits, query, vectors, config, k, allowed=None, side="image"):
    """As many as there can be, with the right scores, in order, ties by position, and nobody better left out."""
    scores = np.array([score(query, item, config, side) for item in vectors])
    candidates = np.flatnonzero(np.ones(len(vectors), bool) if allowed is None else allowed)
    assert len(hits.positions) == min(k, len(candidates))
    assert len(set(hits.positions.tolist())) == len(hits.positions)
    assert set(hits.positions.tolist()) <= set(candidates.tolist())
    scale = 1e-13 * (1 + 1 / config.get("alpha", 1.0))
    np.testing.assert_allclose(hits.scores, scores[hits.positions], rtol=0, atol=20 * scale)
    pairs = list(zip(-hits.scores, hits.positions, strict=True))
    assert pairs == sorted(pairs)
    left = np.setdiff1d(candidates, hits.positions)
    if len(left) and len(hits.scores):
        assert scores[left].max() <= hits.scores[-1] + 20 * scale
