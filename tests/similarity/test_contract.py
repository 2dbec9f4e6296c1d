"""What must hold for every similarity, whatever it computes."""

import math

import pytest
import torch

from polysem import PolysemError, similarity
from polysem.search.engine.scoring import find_scoring
from support import unit

SETTINGS = {
    "smooth_chamfer": {"name": "smooth_chamfer"},
    "smooth_chamfer-sharp": {"name": "smooth_chamfer", "alpha": 300.0},
    "smooth_chamfer-euclidean": {"name": "smooth_chamfer", "metric": "euclidean"},
    "chamfer": {"name": "chamfer"},
    "mil": {"name": "mil"},
    "soft_maximum": {"name": "soft_maximum"},
    "soft_maximum-sharp": {"name": "soft_maximum", "alpha": 300.0},
    "match_probability": {"name": "match_probability"},
    "match_probability-learnable": {"name": "match_probability", "learnable": True},
    "match_probability-pcme": {"name": "match_probability", "form": "pcme"},
}
every_similarity = pytest.mark.parametrize("setting", SETTINGS)


def build(setting: str) -> similarity.Similarity:
    return similarity.build(**SETTINGS[setting])


def obvious(part, x, y):
    """The score of one set (a list of vectors) with another, one element pair at a time."""
    kind = part.config["name"]
    distance = [[math.sqrt(sum((p - q) ** 2 for p, q in zip(u, v, strict=True))) for v in y] for u in x]
    cosine = [[sum(p * q for p, q in zip(u, v, strict=True)) for v in y] for u in x]
    if kind == "match_probability":
        if part.form == "dive":
            return sum(1 / (1 + math.exp(-c)) for row in cosine for c in row) / (len(x) * len(y))
        logits = [-15 * math.sqrt(d * d + 1e-6) + 15 for row in distance for d in row]
        return sum(1 / (1 + math.exp(-2 * z)) for z in logits) / len(logits)
    if kind == "mil":
        return max(c for row in cosine for c in row)
    c = [[-d for d in row] for row in distance] if part.config.get("metric") == "euclidean" else cosine
    columns = list(zip(*c, strict=True))
    if kind == "soft_maximum":
        total = 0.0
        for column in columns:
            weights = [math.exp(part.alpha * (v - max(column))) for v in column]
            total += sum(w * v for w, v in zip(weights, column, strict=True)) / sum(weights)
        return total / len(columns)
    if kind == "chamfer":
        return (sum(max(row) for row in c) / len(x) + sum(max(col) for col in columns) / len(y)) / 2

    def soft(values):
        top = max(values)
        return top + math.log(sum(math.exp(part.alpha * (v - top)) for v in values)) / part.alpha

    return (sum(soft(row) for row in c) / len(x) + sum(soft(col) for col in columns) / len(y)) / 2


def test_every_registered_similarity_is_under_this_contract():
    # `cosine` takes single vectors only: test_cosine.py has what holds for it.
    assert {knobs["name"] for knobs in SETTINGS.values()} == set(similarity.names()) - {"cosine"}


@every_similarity
@pytest.mark.parametrize(("k", "size"), [(1, 1), (3, 3), (4, 2), (1, 5)])
def test_against_the_formula(setting, k, size):
    part = build(setting)
    a, b = unit(3, k, 6), unit(5, size, 6, seed=1)
    expected = torch.tensor([[obvious(part, x, y) for y in b.tolist()] for x in a.tolist()])
    torch.testing.assert_close(part.scores(a, b), expected, atol=1e-5, rtol=0)


@every_similarity
@pytest.mark.parametrize("budget_mb", [1e-6, 1e-4, 5e-4, 2e-3, 1.0])
def test_blocked_equals_unblocked(setting, budget_mb):
    part = build(setting)
    a, b = unit(7, 3, 6), unit(11, 4, 6, seed=1)
    with torch.no_grad():
        whole, blocked = part.scores(a, b), part.scores(a, b, budget_mb=budget_mb)
    torch.testing.assert_close(blocked, whole, atol=1e-6, rtol=0)


@every_similarity
@pytest.mark.parametrize("budget_mb", [1e-6, 5e-4, 2e-3])
def test_gradients_in_blocks_equal_gradients_in_one_piece(setting, budget_mb):
    part = build(setting)
    coefficient = torch.randn(7, 11)
    gradients = []
    for budget in (64.0, budget_mb):
        a, b = unit(7, 3, 6).requires_grad_(), unit(11, 4, 6, seed=1).requires_grad_()
        part.zero_grad()
        (part.scores(a, b, budget_mb=budget) * coefficient).sum().backward()
        gradients.append([a.grad, b.grad, *(p.grad.clone() for p in part.parameters())])
    for whole, blocked in zip(*gradients, strict=True):
        torch.testing.assert_close(blocked, whole, atol=1e-5, rtol=1e-5)


@every_similarity
def test_with_and_without_gradients_the_scores_agree(setting):
    part = build(setting)
    a, b = unit(7, 3, 6), unit(11, 4, 6, seed=1)
    with torch.no_grad():
        plain = part.scores(a, b)
    torch.testing.assert_close(part.scores(a.requires_grad_(), b).detach(), plain, atol=1e-6, rtol=0)


@every_similarity
def test_it_is_symmetric_or_says_so_and_blind_to_the_order_of_elements(setting):
    part = build(setting)
    a, b = unit(4, 3, 6), unit(5, 2, 6, seed=1)
    scores = part.scores(a, b)
    assert part.symmetric == torch.allclose(part.scores(b, a).t(), scores, atol=1e-6, rtol=0)
    torch.testing.assert_close(part.scores(a.flip(1), b), scores, atol=1e-6, rtol=0)


@every_similarity
def test_in_a_search_images_come_first(setting):
    part = build(setting)
    queries, items = unit(4, 3, 6), unit(5, 2, 6, seed=1)
    torch.testing.assert_close(part.search_scores(queries, items, "image"), part.scores(items, queries).t())
    torch.testing.assert_close(part.search_scores(queries, items, "text"), part.scores(queries, items))


@every_similarity
def test_contributions_sum_to_the_score(setting):
    part = build(setting)
    a, b = unit(3, 4, 6), unit(3, 2, 6, seed=1)
    scores = part.scores(a, b)
    for i in range(3):
        shares = part.contributions(a[i], b[i])
        assert shares.shape == (4, 2)
        torch.testing.assert_close(shares.sum(), scores[i, i], atol=1e-6, rtol=0)
    torch.testing.assert_close(part.contributions(a, b).sum((1, 2)), scores.diagonal(), atol=1e-6, rtol=0)


@every_similarity
def test_contributions_of_ties_sum_to_the_score_too(setting):
    part = build(setting)
    x = unit(1, 6).expand(3, 6)
    torch.testing.assert_close(part.contributions(x, x).sum(), part.scores(x[None], x[None])[0, 0], atol=1e-4, rtol=0)


@every_similarity
def test_gradcheck(setting):
    part = build(setting).double()
    a, b = unit(2, 3, 4, dtype=torch.float64).requires_grad_(), unit(3, 2, 4, seed=1, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x, y: part.scores(x, y), (a, b.requires_grad_()))
    assert torch.autograd.gradcheck(lambda x, y: part.scores(x, y, budget_mb=1e-5), (a, b))


@every_similarity
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("kind", ["same", "opposite", "zeros", "duplicates", "orthogonal"])
def test_gradients_are_finite_at_the_edges(setting, kind, k):
    part = build(setting)
    a = unit(2, k, 6)
    b = {
        "same": a.clone(),
        "opposite": -a,
        "zeros": torch.zeros_like(a),
        "duplicates": a[:, :1].expand_as(a).clone(),
        "orthogonal": torch.eye(6)[:k].expand(2, k, 6).clone(),
    }[kind]
    if kind == "duplicates":
        a = b.clone()
    if kind == "zeros":
        a = b.clone()
    a.requires_grad_()
    b.requires_grad_()
    scores = part.scores(a, b)
    scores.sum().backward()
    assert scores.isfinite().all()
    assert a.grad.isfinite().all()
    assert b.grad.isfinite().all()


@every_similarity
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_scored_in_float32(setting, dtype):
    part = build(setting)
    a, b = unit(3, 2, 64).to(dtype), unit(4, 2, 64, seed=1).to(dtype)
    scores = part.scores(a, b)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, part.scores(a.float(), b.float()), atol=1e-6, rtol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(part.scores(a.float(), b.float()), scores, atol=1e-6, rtol=0)


@every_similarity
def test_nothing_against_something_is_an_empty_matrix(setting):
    assert build(setting).scores(unit(3, 2, 6), unit(5, 2, 6)[:0]).shape == (3, 0)


@every_similarity
def test_bad_input_is_named(setting):
    part = build(setting)
    a = unit(3, 2, 6)
    with pytest.raises(PolysemError, match=r"second.*\(3, 6\).*sets of one: x\[:, None\]"):
        part.scores(a, a[:, 0])
    with pytest.raises(PolysemError, match=r"width.*6 .*5"):
        part.scores(a, a[..., :5])
    with pytest.raises(PolysemError, match="int64"):
        part.scores(a.long(), a)
    with pytest.raises(PolysemError, match="list"):
        part.scores([[1.0]], a)
    with pytest.raises(PolysemError, match="budget_mb must be a positive number"):
        part.scores(a, a, budget_mb=0)
    with pytest.raises(PolysemError, match="budget_mb must be a positive number"):
        part.scores(a, a, budget_mb=float("inf"))
    with pytest.raises(PolysemError, match="got list and float32"):
        part.contributions([1.0], a[0])
    with pytest.raises(PolysemError, match="one set against one set"):
        part.contributions(a[0], a)


@every_similarity
def test_saved_equals_loaded(setting, tmp_path):
    part = build(setting)
    for p in part.parameters():
        p.data.add_(0.5)
    torch.save(part.state_dict(), tmp_path / "part.pt")
    loaded = similarity.build(**part.config)
    loaded.load_state_dict(torch.load(tmp_path / "part.pt", weights_only=True))
    assert torch.equal(loaded.scores(unit(3, 2, 6), unit(4, 2, 6)), part.scores(unit(3, 2, 6), unit(4, 2, 6)))


@every_similarity
@pytest.mark.parametrize("grad", [False, True])
def test_nothing_against_something_with_gradients_too(setting, grad):
    empty = torch.zeros(0, 2, 6, requires_grad=grad)
    assert build(setting).scores(empty, unit(4, 3, 6)).shape == (0, 4)
    assert build(setting).scores(unit(4, 3, 6), empty).shape == (4, 0)


@every_similarity
def test_nan_is_never_taken_for_a_match(setting):
    a = unit(3, 2, 6)
    a[1] = float("nan")
    scores = build(setting).scores(a, unit(4, 2, 6))
    assert scores[1].isnan().all()
    assert scores[[0, 2]].isfinite().all()


@every_similarity
def test_contributions_are_as_exact_as_the_scores(setting):
    part = build(setting).double()
    x, y = unit(3, 6, dtype=torch.float64), unit(2, 6, seed=1, dtype=torch.float64)
    score = part.scores(x[None], y[None])[0, 0]
    torch.testing.assert_close(part.contributions(x, y).sum(), score, atol=1e-12, rtol=0)
    part = build(setting)
    score = part.scores(x[None].half(), y[None].float())[0, 0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(part.contributions(x.half(), y.float()).sum(), score, atol=1e-6, rtol=0)


@every_similarity
@pytest.mark.parametrize(("k", "dim"), [(4, 64), (1, 1024), (8, 16)])
def test_blocks_hold_no_more_than_the_budget(setting, k, dim, monkeypatch):
    """The numbers of every block, its copies and its sides fit; and with a gradient, blocks are used at all."""
    seen = []
    score = similarity.Similarity._score_block

    def watched(self, reduce, a, b):
        seen.append((a.shape[0] * b.shape[0] * k * k * 3 + (len(a) + len(b)) * k * dim) * 4 / 2**20)
        return score(self, reduce, a, b)

    monkeypatch.setattr(similarity.Similarity, "_score_block", watched)
    a, b = unit(60, k, dim), unit(90, k, dim, seed=1)
    for grad in (False, True):
        seen.clear()
        build(setting).scores(a.clone().requires_grad_(grad), b, budget_mb=0.25)
        assert len(seen) > 1
        assert max(seen) <= 0.25


@pytest.mark.parametrize("setting", [*SETTINGS, "cosine"])
def test_exact_search_computes_what_the_similarity_does_or_says_that_it_cannot(setting):
    config = SETTINGS.get(setting, {"name": setting})
    part, size = similarity.build(**config), 1 if setting == "cosine" else 3
    scoring = find_scoring(config)
    assert (scoring is None) == (part.inner_product_score() is None)
    assert (scoring is None) == ("match" in setting or "euclidean" in setting)
    if scoring is not None:
        a, b = unit(4, size, 8).double(), unit(4, size, 8, seed=1).double()
        products = (a @ b.transpose(1, 2)).numpy()
        torch.testing.assert_close(torch.from_numpy(scoring.reduce_exactly(products)), part.scores(a, b).diagonal())
        texts = find_scoring(config, "text")
        torch.testing.assert_close(torch.from_numpy(texts.reduce_exactly(products)), part.scores(b, a).diagonal())


def test_a_formula_that_exact_search_does_not_know_is_refused_when_the_class_is_defined():
    with pytest.raises(
        PolysemError, match=r"Median\.search_formula 'median'.*chamfer, max, smooth_chamfer, soft_maximum"
    ):
        type("Median", (similarity.Chamfer,), {"search_formula": "median"})
    for formula, alpha in (
        ("max", 16.0),
        ("smooth_chamfer", math.inf),
        ("soft_maximum", math.inf),
        ("median", math.inf),
    ):
        with pytest.raises(PolysemError, match=f"max, chamfer, smooth_chamfer, soft_maximum.*{formula}"):
            similarity.InnerProductScore(formula, alpha)


def test_a_subclass_that_reduces_in_another_way_is_not_searched_by_its_parents_formula():
    own = type("Lowest", (similarity.SmoothChamfer,), {"reduce": lambda _, c: c.amin((1, 2))})
    assert own().inner_product_score() is None
    assert type("Same", (similarity.SmoothChamfer,), {})().inner_product_score() is not None
