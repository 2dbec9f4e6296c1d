import math

import pytest
import torch

from polysem import PolysemError, objectives
from polysem.objectives import regularisers
from support import unit

SETTINGS = {
    "mmd": {"name": "mmd"},
    "diversity": {"name": "diversity"},
    "diversity-gram": {"name": "diversity", "form": "gram"},
}
every_regulariser = pytest.mark.parametrize("setting", SETTINGS)


def obvious(setting, images, texts):
    def distance(u, v):
        return math.sqrt(sum((p - q) ** 2 for p, q in zip(u, v, strict=True)))

    if setting == "mmd":
        x, y = images.flatten(0, 1).tolist(), texts.flatten(0, 1).tolist()

        def kernel(a, b):
            return sum(math.exp(-0.5 * distance(u, v)) for u in a for v in b) / (len(a) * len(b))

        return kernel(x, x) - 2 * kernel(x, y) + kernel(y, y)
    total = 0.0
    for side in (images, texts):
        items = torch.nn.functional.normalize(side, dim=-1).tolist()
        for item in items:
            k = len(item)
            if setting == "diversity":
                gaps = [distance(item[i], item[j]) for i in range(k) for j in range(i + 1, k)]
                total += sum(math.exp(-2 * d * d) for d in gaps) / len(gaps) / len(items)
            else:
                dots = [
                    sum(p * q for p, q in zip(item[i], item[j], strict=True))
                    for i in range(k)
                    for j in range(k)
                    if i != j
                ]
                total += math.sqrt(sum(c * c for c in dots)) / k**2 / len(items)
    return total


@every_regulariser
def test_against_the_formula(setting):
    images, texts = unit(3, 4, 6, dtype=torch.float64) * 2, unit(5, 2, 6, seed=1, dtype=torch.float64)
    loss = objectives.build(**SETTINGS[setting])(images, texts)
    assert float(loss.total) == pytest.approx(obvious(setting, images, texts), rel=1e-9)
    assert set(loss.parts) == ({"mmd"} if setting == "mmd" else {"image", "text"})


@every_regulariser
def test_gradcheck(setting):
    part = objectives.build(**SETTINGS[setting])
    images = unit(2, 3, 4, dtype=torch.float64).requires_grad_()
    texts = unit(3, 2, 4, seed=1, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: part(a, b).total, (images, texts))


@every_regulariser
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("kind", ["zeros", "duplicates", "orthogonal", "opposite"])
def test_gradients_are_finite_at_the_edges(setting, kind, k):
    images = {
        "zeros": torch.zeros(2, k, 6),
        "duplicates": unit(1, 1, 6).expand(2, k, 6).clone(),
        "orthogonal": torch.eye(6)[:k].expand(2, k, 6).clone(),
        "opposite": unit(2, k, 6),
    }[kind].requires_grad_()
    texts = (-images if kind == "opposite" else images).detach().clone().requires_grad_()
    loss = objectives.build(**SETTINGS[setting])(images, texts)
    loss.total.backward()
    assert loss.total.isfinite()
    assert images.grad.isfinite().all()
    assert texts.grad.isfinite().all()


@pytest.mark.parametrize("form", ["uniformity", "gram"])
def test_a_set_of_one_has_nothing_to_spread(form):
    assert objectives.build("diversity", form=form)(unit(3, 1, 6), unit(4, 1, 6)).total == 0


def test_diversity_falls_as_elements_part():
    part = objectives.build("diversity")
    collapsed, spread = unit(3, 1, 6).expand(3, 4, 6), torch.eye(6)[:4].expand(3, 4, 6)
    assert float(part(collapsed, collapsed).total) == pytest.approx(2.0)
    assert float(part(spread, spread).total) == pytest.approx(2 * math.exp(-4))


def test_mmd_of_a_collection_with_itself_is_nothing():
    x = unit(6, 4, 16)
    assert abs(float(objectives.build("mmd")(x, x).total)) < 1e-4


def test_mmd_in_blocks_equals_mmd_in_one_piece(monkeypatch):
    part = objectives.build("mmd")
    results = []
    for block in (1 << 22, 50):
        monkeypatch.setattr(regularisers, "_BLOCK", block)
        images, texts = unit(5, 4, 6).requires_grad_(), unit(7, 2, 6, seed=1).requires_grad_()
        total = part(images, texts).total
        total.backward()
        results.append((total.detach(), images.grad, texts.grad))
    for whole, blocked in zip(*results, strict=True):
        torch.testing.assert_close(blocked, whole, atol=1e-6, rtol=1e-5)


@every_regulariser
def test_bad_input_is_named(setting):
    part = objectives.build(**SETTINGS[setting])
    with pytest.raises(PolysemError, match=r"texts.*\(4, 6\)"):
        part(unit(3, 2, 6), unit(4, 6))
    with pytest.raises(PolysemError, match=r"images.*int64"):
        part(unit(3, 2, 6).long(), unit(4, 2, 6))
    with pytest.raises(PolysemError, match="width 6 and texts 5"):
        part(unit(3, 2, 6), unit(3, 2, 5))


@every_regulariser
def test_nan_and_what_is_no_tensor_are_refused(setting):
    part = objectives.build(**SETTINGS[setting])
    with pytest.raises(PolysemError, match="images hold NaN"):
        part(torch.full((2, 2, 3), float("nan")), unit(2, 2, 3))
    with pytest.raises(PolysemError, match=r"texts.*got list"):
        part(unit(2, 2, 3), [1.0])


def test_mmd_keeps_full_precision_under_autocast():
    x, y = unit(6, 4, 16), unit(6, 4, 16) + 1e-3
    part = objectives.build("mmd")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = part(x, y).total
    torch.testing.assert_close(rough, part(x, y).total)
