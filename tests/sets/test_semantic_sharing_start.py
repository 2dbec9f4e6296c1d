"""Class predictors that read a cls token, embed states, name labels, or start from a text model."""

import pytest
import torch

from encoders.tiny_models import TINY_TEXT
from polysem import PolysemError, sets
from support import alone, assert_close, batch, shaken

LABELS = [f"label {n}" for n in range(5)]
SMALL = {"layers": 2, "heads": 2, "ff": 10}
BERT = {"model_type": "bert", **TINY_TEXT}
WIDE = int(TINY_TEXT["hidden_size"])
KINDS = {
    "tokens": {"dim": 5, "input_dim": 8, **SMALL},
    "cls": {"dim": 5, "input_dim": 8, "read": "cls", **SMALL},
    "state": {"dim": 8, "input_dim": 8, "embed": "state", **SMALL},
    "cls state": {"dim": 8, "input_dim": 8, "read": "cls", "embed": "state", **SMALL},
    "bert": {"dim": 5, "input_dim": WIDE, "backbone_config": BERT},
    "bert cls": {"dim": 5, "input_dim": WIDE, "backbone_config": BERT, "read": "cls", "layers": 1},
}


def build(kind, **knobs):
    torch.manual_seed(0)
    return shaken(sets.build("semantic_sharing", labels=LABELS, scaled=False, **KINDS[kind], **knobs))


@pytest.mark.parametrize("kind", KINDS)
def test_neither_vectors_nor_classes_depend_on_the_batch(kind):
    part = build(kind)
    features = batch(part.input_dim)
    found = part(features)
    assert found.vectors.shape == (4, 1, part.dim)
    assert found.logits.shape == (4, 5)
    assert_close(found.vectors.norm(dim=-1), torch.ones(4, 1), atol=1e-5)
    for item in range(4):
        single = part(alone(features, item))
        assert_close(found.vectors[item], single.vectors[0], atol=1e-5)
        assert_close(found.logits[item], single.logits[0], atol=1e-4)
    other = part(batch(part.input_dim, seed=1)).logits
    assert (found.logits - other).abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_is_built_again_from_its_config(kind):
    part = build(kind)
    twin = sets.build(**part.config).eval()
    twin.load_state_dict(part.state_dict())
    features = batch(part.input_dim)
    assert torch.equal(twin(features).vectors, part(features).vectors)
    assert twin.labels == tuple(LABELS)


def test_an_items_probability_is_the_mean_of_its_tokens():
    part = build("tokens")
    features = batch(8)
    found = part(features)
    mean = (part.token_classes(features) * features.mask[..., None]).sum(1) / features.mask.sum(1, keepdim=True)
    assert_close(part.probabilities(found.logits), mean, atol=1e-6)
    assert_close(found.residual[:, 0], mean, atol=1e-6)


def test_a_certain_classifier_still_has_a_gradient():
    """1 - p would round to 0 in single precision, and a certain mistake could not be mended."""
    part = build("tokens")
    with torch.no_grad():
        part.predict_classes.bias += 60.0
    loss = torch.nn.functional.binary_cross_entropy_with_logits(part(batch(8)).logits, torch.zeros(4, 5))
    (gradient,) = torch.autograd.grad(loss, [part.predict_classes.bias])
    assert gradient.isfinite().all()
    assert gradient.min() > 0.01


def test_what_each_token_adds_sums_up_to_the_vector():
    for kind in ("tokens", "state"):
        part = build(kind)
        features = batch(8)
        assert_close(part.as_sum(features).terms.sum(1), part(features).residual[:, 0], atol=1e-5)
    assert build("cls").as_sum(batch(8)) is None


def test_an_untrained_classifier_begins_at_the_frequencies():
    frequencies = torch.tensor([0.01, 0.5, 0.2, 0.9, 0.0])
    for name, knobs in (("classes", SMALL), ("common", {})):
        part = sets.build(name, dim=5, input_dim=8, labels=LABELS, **knobs).eval()
        torch.nn.init.zeros_(part.predict_classes.weight)
        part.initialise_frequencies(frequencies)
        assert_close(part.probabilities(part(batch(8)).logits)[0], frequencies, atol=2e-4)


def test_the_layers_of_a_text_model_come_with_their_weights(tmp_path):
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    model = BertModel(BertConfig(**TINY_TEXT), add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path / "bert")
    start = str(tmp_path / "bert")
    part = sets.build("semantic_sharing", dim=5, input_dim=WIDE, labels=LABELS, start=start).eval()
    values = batch(WIDE, (4, 4))
    expected = model(inputs_embeds=values.values).last_hidden_state
    assert_close(part(values).states, expected, atol=1e-5)
    first = sets.build("semantic_sharing", dim=5, input_dim=WIDE, labels=LABELS, start=start, layers=1).eval()
    assert len(first.borrowed.model.encoder.layer) == 1
    assert_close(
        first.borrowed.model.encoder.layer[0].output.dense.weight, model.encoder.layer[0].output.dense.weight, atol=0
    )
    # The table of words stays behind.
    assert not any(tensor.shape[0] == TINY_TEXT["vocab_size"] for tensor in part.state_dict().values() if tensor.ndim)
    # The folder may be gone by the time the part is built again.
    twin = sets.build(**{**part.config, "start": "/nowhere/at/all"}).eval()
    twin.load_state_dict(part.state_dict())
    assert_close(twin(values).vectors, part(values).vectors, atol=0)
    for knobs, problem in (
        ({"input_dim": 8}, rf"width {WIDE}.*input_dim=8.*image.project.dim={WIDE}"),
        ({"layers": 3}, "has 2 layers; got layers=3"),
        ({"heads": 4}, "heads=2; got heads=4"),
        ({"ff": 7}, "ff=24; got ff=7"),
    ):
        with pytest.raises(PolysemError, match=problem):
            sets.build("semantic_sharing", **{"dim": 5, "input_dim": WIDE, "start": start, **knobs})


def test_an_item_longer_than_the_models_positions_is_refused():
    part = build("bert")
    with pytest.raises(PolysemError, match="positions for 40 tokens; an item has 41"):
        part(batch(WIDE, (41, 3)))


def test_labels_that_do_not_fit_are_named():
    for knobs, problem in (
        ({"labels": ["a", "a"], "dim": 2}, "unique"),
        ({"labels": ["a", "b"], "dim": 3}, "dim=3 counts the classes, and there are 2"),
        ({"embed": "state", "dim": 8}, "name the classes"),
        ({"embed": "state", "dim": 3, "labels": ["a"]}, "input_dim=8, not dim=3"),
    ):
        with pytest.raises(PolysemError, match=problem):
            sets.build("semantic_sharing", input_dim=8, **SMALL, **knobs)


def test_a_model_whose_tokens_are_narrower_than_its_states_cannot_start_it():
    albert = {"model_type": "albert", **TINY_TEXT, "embedding_size": WIDE // 2}
    with pytest.raises(PolysemError, match=rf"tokens of width {WIDE // 2} and has states of width {WIDE}"):
        sets.build("semantic_sharing", labels=LABELS, dim=5, input_dim=WIDE, backbone_config=albert)


@pytest.mark.parametrize("family", ["gpt2", "vit", "clip_text_model"])
def test_a_model_that_reads_pictures_or_looks_back_alone_cannot_start_it(family):
    with pytest.raises(PolysemError, match="does not attend both ways over text"):
        sets.build("semantic_sharing", labels=LABELS, dim=5, input_dim=WIDE, backbone_config={"model_type": family})
