"""The score map: exact where the vectors are sums over tokens, by omission elsewhere, and it follows the text."""

import pytest
import torch

from inspection.small_models import make_model, make_regions
from polysem import LocalFeatures, similarity
from polysem.inspection import explain
from polysem.inspection.attention import tower_attentions
from polysem.inspection.score_map import map_score, split_phrases
from polysem.inspection.token_boxes import locate_regions
from support import unit

TEXTS = ["a small red dog", "blue boat"]


def score(model, features, text):
    return model.similarity(model.encode_images([features]), model.encode_texts([text])).item()


@pytest.mark.parametrize(
    ("image", "text", "name"),
    [
        ("competing", "competing-one", "soft_maximum"),
        ("competing-one", "competing-one", "soft_maximum"),
        ("competing-one", "competing-one", "cosine"),
        ("competing", "competing", "smooth_chamfer"),
        ("competing", "competing", "chamfer"),
        ("competing", "slots", "mil"),
        ("competing", "competing", "match_probability"),
        ("single-gpo", "single-gpo", "cosine"),
        ("single-mean", "slots", "soft_maximum"),
    ],
)
def test_tokens_and_remainder_sum_to_the_models_own_score(image, text, name):
    """With padding: the items of a batch have different numbers of tokens."""
    model = make_model(image, text, name)
    lengths = (7, 4, 1)
    items = [make_regions(count, seed=count) for count in lengths]
    padded = torch.full((3, 7, items[0].shape[1]), 9.0)
    for row, item in enumerate(items):
        padded[row, : len(item)] = item
    attentions = tower_attentions(model.image, LocalFeatures.from_lengths(padded, list(lengths)))
    for words in TEXTS:
        vectors = model.encode_texts([words])[0]
        for item, attention in zip(items, attentions, strict=True):
            found = map_score(model.similarity, attention, vectors, torch.ones(len(item), dtype=torch.bool))
            assert (found.how, found.values.shape) == ("sum", (len(item),))
            assert float(found.values.sum()) + found.remainder == pytest.approx(score(model, item, words), abs=1e-5)
            torch.testing.assert_close(found.elements.sum(0), found.values, atol=1e-6, rtol=0)


def test_tokens_count_by_what_sets_them_apart():
    """Equal tokens tell nothing about where, whatever they say."""
    model = make_model("competing", "competing-one", "soft_maximum")
    found = explain(model, make_regions()[:1].expand(5, -1), TEXTS[0]).score_map
    torch.testing.assert_close(found.values, torch.zeros(5), atol=1e-6, rtol=0)
    assert found.remainder == pytest.approx(score(model, make_regions()[:1].expand(5, -1), TEXTS[0]), abs=1e-5)


def test_a_token_without_a_place_is_not_part_of_the_mean():
    model = make_model("competing", "competing-one", "soft_maximum")
    features, located = make_regions(), torch.tensor([False] + 6 * [True])
    (attention,) = tower_attentions(model.image, LocalFeatures.from_lengths(features[None], [7]))
    text = model.encode_texts([TEXTS[0]])[0]
    found = map_score(model.similarity, attention, text, located)
    assert float(found.values.sum()) + found.remainder == pytest.approx(score(model, features, TEXTS[0]), abs=1e-5)
    assert not torch.allclose(found.values, map_score(model.similarity, attention, text, ~located | True).values)


def test_the_map_follows_the_text():
    """Two texts, each near what one token alone says, point at these tokens of one image."""
    model = make_model("single-mean", "single-mean", "cosine")
    (attention,) = tower_attentions(model.image, LocalFeatures.from_lengths(make_regions(9)[None], [9]))
    every = torch.ones(9, dtype=torch.bool)
    (part,) = attention.sums.center(every[None]).parts
    peaks = []
    for token in (2, 6):
        alone = torch.nn.functional.one_hot(torch.tensor(token), 9).float() - 1 / 9
        text = torch.linalg.lstsq(part.values[0], alone[:, None]).solution[:, 0]
        found = map_score(model.similarity, attention, (text / text.norm())[None], every)
        peaks.append(int(found.values.argmax()))
    assert peaks == [2, 6]


@pytest.mark.parametrize("image", ["competing-mlp", "attention_pooling", "slots", "single-seq2seq"])
def test_what_is_no_sum_is_mapped_by_omission(image):
    model = make_model(image, "slots", "smooth_chamfer")
    features = make_regions()
    found = explain(model, features, TEXTS[0]).score_map
    assert (found.how, found.elements, found.remainder) == ("omission", None, None)
    without = torch.cat([features[:3], features[4:]])
    fall = score(model, features, TEXTS[0]) - score(model, without, TEXTS[0])
    assert float(found.values[3]) == pytest.approx(fall, abs=1e-5)


def test_a_distance_is_mapped_by_omission():
    """Minus a distance is no sum over tokens."""
    model = make_model("competing", "competing-one", "soft_maximum")
    euclidean = similarity.build("smooth_chamfer", metric="euclidean")
    (attention,) = tower_attentions(model.image, LocalFeatures.from_lengths(make_regions()[None], [7]))
    every = torch.ones(7, dtype=torch.bool)
    assert map_score(euclidean, attention, model.encode_texts(TEXTS)[0], every) is None


@pytest.mark.parametrize("name", similarity.names())
def test_pair_weights_are_weights_of_the_closeness(name):
    alike, size = similarity.build(name), 1 if name == "cosine" else 3
    closeness = unit(1, size, 8)[0] @ unit(1, size, 8, seed=1)[0].t()
    weights = alike.pair_weights(closeness)
    assert weights.shape == (size, size)
    assert bool((weights >= 0).all())
    if name != "match_probability":
        assert float(weights.sum()) == pytest.approx(1, abs=1e-5)
    if name in ("soft_maximum", "mil", "chamfer", "cosine"):
        torch.testing.assert_close(weights * closeness, alike.shares(closeness))


def test_it_is_in_the_json_and_the_largest_is_brightest():
    found = explain(make_model("competing", "competing-one", "soft_maximum"), make_regions(), TEXTS[0])
    told = found.as_dict()["score_map"]
    assert told["how"] == "sum"
    assert sum(told["values"]) + told["remainder"] == pytest.approx(found.score, abs=1e-5)
    assert len(told["elements"]) == 3
    assert float(found.score_map.shown.max()) == pytest.approx(1)
    assert found.score_map.shown.argmax() == found.score_map.values.argmax()


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("a dog running on grass", ("a dog", "grass")),
        ("A dog is running on green grass.", ("a dog", "green grass")),
        ("green grass", ()),
        ("a brown and white dog", ()),
        ("Three butterflies and a lion.", ("three butterflies", "a lion")),
        ("two running dogs in the snow", ("two running dogs", "the snow")),
        ("swimming in a pool", ("a pool",)),
        ("ein Hund im Gras", ()),
        ("on the left", ()),
        ("?", ()),
    ],
)
def test_a_text_is_split_into_what_it_names(text, phrases):
    assert split_phrases(text) == phrases


def test_each_phrase_has_the_map_that_it_has_alone():
    model = make_model("competing", "competing-one", "soft_maximum")
    boxes = locate_regions(torch.tensor([[0.0, 0, 5, 5]]).expand(7, -1), (20, 20)).boxes
    found = explain(model, make_regions(), "a red dog on a boat", boxes=boxes)
    assert [each.phrase for each in found.phrase_maps] == ["a red dog", "a boat"]
    for each in found.phrase_maps:
        alone = explain(model, make_regions(), each.phrase, boxes=boxes)
        assert each.score == pytest.approx(alone.score, abs=1e-5)
        torch.testing.assert_close(each.map.values, alone.score_map.values, atol=1e-5, rtol=0)
    assert [each["phrase"] for each in found.as_dict()["phrase_maps"]] == ["a red dog", "a boat"]
