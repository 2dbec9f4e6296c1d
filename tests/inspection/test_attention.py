"""The attention shown is the attention used."""

import numpy as np
import pytest
import torch

from inspection.small_models import SETS, make_model, make_regions
from polysem import LocalFeatures, PolysemError
from polysem.inspection import decompose_score, image_attentions, text_attentions

CAPTION = "a small red dog"


@pytest.mark.parametrize("setting", SETS)
def test_weights_are_shares_and_vectors_those_of_encoding(setting):
    alike = "smooth_chamfer" if "single" not in setting and setting != "classes" else "cosine"
    model = make_model(setting, setting, alike)
    images = [make_regions(7), make_regions(3, seed=1), make_regions(1, seed=2)]
    texts = [CAPTION, "cat", "a blue boat by the tree"]
    for found, sets in (
        (list(image_attentions(model, images)), model.encode_images(images)),
        (list(text_attentions(model, texts)), model.encode_texts(texts)),
    ):
        torch.testing.assert_close(torch.stack([item.vectors for item in found]), sets, atol=1e-5, rtol=0)
        for item in found:
            steps = 3 if setting.startswith(("slots", "transformer")) else 1
            assert item.weights.shape[:2] == (steps, sets.shape[1])
            assert item.weights.min() >= 0
            torch.testing.assert_close(item.weights.sum(-1), torch.ones(item.weights.shape[:2]), atol=1e-5, rtol=0)
            assert (item.won is not None) == (setting.startswith(("slots", "competing")) and setting != "competing-one")
            if item.won is not None:
                torch.testing.assert_close(item.won.sum(1), torch.ones_like(item.won[:, 0]), atol=1e-5, rtol=0)
            if item.terms is not None:
                torch.testing.assert_close(item.terms.sum(0), item.vectors[0], atol=1e-5, rtol=0)
                assert float(item.wins.sum()) == pytest.approx(1)
    assert [item.weights.shape[-1] for item in image_attentions(model, images)] == [7, 3, 1]


@pytest.mark.parametrize("setting", ["slots", "single-gpo", "single-gcn"])
def test_an_item_does_not_depend_on_its_batch(setting):
    model = make_model(setting, setting, "smooth_chamfer" if setting == "slots" else "cosine")
    images = [make_regions(7), make_regions(3, seed=1)]
    together, alone = image_attentions(model, images), image_attentions(model, images, batch_size=1)
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one.weights, other.weights, atol=1e-5, rtol=0)


def test_what_kind_of_weights_they_are():
    kinds = {
        **dict.fromkeys(("slots", "attention_pooling"), "attention"),
        **dict.fromkeys(("single-gpo", "classes"), "pooling"),
        "single-seq2seq": "omission",
    }
    for setting, how in kinds.items():
        model = make_model(
            setting, setting, "smooth_chamfer" if setting in ("slots", "attention_pooling") else "cosine"
        )
        assert next(image_attentions(model, [make_regions()])).how == how


def test_all_weights_of_a_maximum_lie_on_the_tokens_that_hold_it():
    model = make_model("single-max", "single-max", "cosine")
    given = make_regions()
    found = next(image_attentions(model, [given]))
    values = model.image.encoder(LocalFeatures.from_list([given])).values[0]
    wins = torch.bincount(values.argmax(0), minlength=len(given)) / values.shape[1]
    torch.testing.assert_close(found.weights[0, 0], wins)


SHARP = [
    "slots-alone", "transformer", "pie_net", "attention_pooling", "single-gpo", "single-adpool", "single-softpool",
    "single-max", "single-kmax", "single-seq2seq", "single-selfattention",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("setting", SHARP)
def test_a_decisive_token_changes_the_score_and_an_irrelevant_one_does_not(setting):
    """Each token in turn is taken out of the picture. Over many pictures, the one that the map marks most counts for
    more than tokens do on average, and the one that it marks least for less."""
    single = setting.startswith("single")
    model = make_model(setting, "single-mean" if single else "slots", "cosine" if single else "smooth_chamfer")
    _sharpen(model, setting)
    text = model.encode_texts([CAPTION])
    decisive, irrelevant, usual = [], [], []
    for seed in range(24):
        loudness = torch.linspace(0.2, 3, 9)[torch.randperm(9)]  # some have more to say than others
        given = make_regions(9, seed) * loudness[:, None]
        found = next(image_attentions(model, [given]))
        # of all elements, each as much as it has to do with the score
        shares = decompose_score(model.similarity, found.vectors, text[0]).rows.abs()
        marked = (shares[:, None] / shares.sum() * found.weights.mean(0)).sum(0)
        without = [torch.cat([given[:place], given[place + 1 :]]) for place in range(9)]
        before = model.similarity(model.encode_images([given]), text)
        after = model.similarity(model.encode_images(without), text)
        changes = (after - before).detach().abs()[:, 0]
        decisive.append(float(changes[marked.argmax()]))
        irrelevant.append(float(changes[marked.argmin()]))
        usual.append(float(changes.mean()))
    assert np.mean(decisive) > 1.3 * np.mean(usual)
    assert np.mean(irrelevant) < 0.7 * np.mean(usual)


def _sharpen(model, setting):
    """Attention that singles tokens out, as trained models have it, and no global feature that knows all of them."""
    sets = model.image.sets
    with torch.no_grad():
        if setting in ("slots-alone", "transformer"):
            for update in sets.block.updates:
                update.attention.to_k.weight.mul_(6)
            if sets.global_norm is not None:
                sets.global_norm.weight.zero_()
                sets.global_norm.bias.zero_()
        elif setting in ("pie_net", "attention_pooling"):
            sets.w_2.weight.mul_(8)
            model.image.pool = _Nothing()
        elif setting == "single-gpo":
            sets.pooling.temperature = 0.005
        model.image.encoder.fc.weight.mul_(3)


class _Nothing(torch.nn.Module):
    """A global feature that says the same of every picture."""

    def forward(self, features):
        return torch.ones(len(features), features.dim)

    def weights(self, features):
        return None


@pytest.mark.parametrize(
    ("images", "says"),
    [
        ("one.jpg", "in brackets"),
        ([], "empty"),
        (["one.jpg"], "precomputed features"),
        ([torch.ones(3)], "tokens, dim"),
    ],
)
def test_mistakes(images, says):
    with pytest.raises(PolysemError, match=says):
        list(image_attentions(make_model(), images))
