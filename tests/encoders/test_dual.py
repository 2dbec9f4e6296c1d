"""The halves of dual encoders equal transformers' own features, for every family, padded and alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from encoders.tiny_duals import DUALS, GEMMA, save_dual, save_gemma_tokenizer
from polysem import encoders
from polysem.errors import InputError, PolysemError
from polysem.inspection.explain.explanation import align_words

TEXTS = ["a dog runs", "the big red cat sits on the blue ball", "grass"]


@pytest.fixture(scope="module", params=list(DUALS))
def dual(request, tmp_path_factory):
    """A folder, transformers' own model of it, and both halves."""
    folder = save_dual(request.param, tmp_path_factory.mktemp("dual") / request.param)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    halves = [encoders.build(name, model=str(folder)).eval() for name in ("dual_image", "dual_text")]
    return folder, model, *halves


def pictures(count=3):
    drawn = np.random.default_rng(0).integers(0, 255, (count, 50, 70, 3), dtype=np.uint8)
    return [Image.fromarray(array) for array in drawn]


@torch.no_grad()
def test_image_features_are_those_of_transformers(dual):
    folder, model, image, _ = dual
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    given = processor(images=pictures(), return_tensors="pt")
    expected = model.get_image_features(**given).pooler_output
    prepared = torch.stack([image.preprocess(picture) for picture in pictures()])
    if model.config.model_type != "siglip2":  # which takes patches
        torch.testing.assert_close(prepared, given["pixel_values"], rtol=0, atol=0)
    torch.testing.assert_close(image(prepared).summary, expected, rtol=0, atol=1e-5)
    for row, picture in enumerate(prepared):
        torch.testing.assert_close(image(picture[None]).summary[0], expected[row], rtol=0, atol=1e-5)
    assert image(prepared).values.shape[1] == len(image.places(*pictures()[0].size))


@torch.no_grad()
def test_text_features_are_those_of_transformers(dual):
    folder, model, _, text = dual
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    siglip = model.config.model_type.startswith("siglip")
    given = tokenizer(TEXTS, padding="max_length" if siglip else True, max_length=40 if siglip else None)
    given = {key: torch.tensor(value) for key, value in given.items() if key == "input_ids" or not siglip}
    given.pop("token_type_ids", None)
    expected = model.get_text_features(**given).pooler_output
    torch.testing.assert_close(text(text.tokenize(TEXTS)).summary, expected, rtol=0, atol=1e-5)
    for row, sentence in enumerate(TEXTS):
        torch.testing.assert_close(text(text.tokenize([sentence])).summary[0], expected[row], rtol=0, atol=1e-5)


@torch.no_grad()
def test_naflex_sees_every_picture_in_its_own_proportions(tmp_path):
    folder = save_dual("siglip2", tmp_path)
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    image = encoders.build("dual_image", model=str(folder)).eval()
    sizes = [(70, 50), (300, 40), (33, 90), (64, 64)]
    drawn = [pictures()[0].resize(size) for size in sizes]
    # Theirs are padded to 16 patches, ours are not padded at all.
    expected = theirs.get_image_features(**processor(images=drawn, return_tensors="pt")).pooler_output
    grids = [image.grid(*size) for size in sizes]
    assert len(set(grids)) == 4
    for picture, (rows, columns), summary in zip(drawn, grids, expected, strict=True):
        features = image(image.preprocess(picture)[None])
        assert features.values.shape[1] == rows * columns == len(image.places(*picture.size)) <= 16
        torch.testing.assert_close(features.summary[0], summary, rtol=0, atol=1e-5)
    with pytest.raises(InputError, match="multiples of 8"):
        image(torch.zeros(1, 3, 30, 32))


@pytest.mark.parametrize("name", ["dual_image", "dual_text"])
def test_the_last_layers_can_train_alone(name, tmp_path):
    half = encoders.build(name, model=str(save_dual("clip", tmp_path)), trainable=1)
    first, last = half.stages()
    assert all(parameter.requires_grad for parameter in last.parameters())
    assert not any(parameter.requires_grad for parameter in first.parameters())


@pytest.mark.parametrize("family", ["siglip", "siglip2"])
@torch.no_grad()
def test_siglip_2_reads_texts_as_it_was_trained(family, tmp_path):
    """In lower case, without a start, with an end, padded behind to the full length by the tokenizer's own token."""
    folder = save_dual(family, tmp_path)
    save_gemma_tokenizer(folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["text_config"].get("pad_token_id", 1) != 0  # it is the tokenizer that knows
    text = encoders.build("dual_text", model=str(folder)).eval()
    tokens = text.tokenize(["A Dog!"])
    assert [GEMMA[token] for token in tokens.ids[0]] == [*"a▁dog!", "<eos>"]
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    padded = torch.tensor([[*tokens.ids[0].tolist(), *[0] * (40 - tokens.ids.shape[1])]])
    expected = theirs.get_text_features(input_ids=padded).pooler_output
    torch.testing.assert_close(text(tokens).summary, expected, rtol=0, atol=1e-5)
    long = text.tokenize(["dog " * 30])
    assert long.ids.shape == (1, 40)
    assert GEMMA[long.ids[0, -1]] == "<eos>"
    again = encoders.build(**text.config).eval()
    again.load_state_dict(text.state_dict())
    text.save_preprocessing(tmp_path / "saved")
    again.load_preprocessing(tmp_path / "saved")
    assert torch.equal(again(again.tokenize(["A Dog!"])).summary, text(tokens).summary)
    assert again.fingerprint() == text.fingerprint()


@torch.no_grad()
def test_siglip_2_pads_on_the_side_that_its_tokenizer_says(tmp_path):
    folder = save_dual("siglip2", tmp_path)
    halves = []
    for side in ("left", "right"):
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, "padding_side": side}))
        halves.append(encoders.build("dual_text", model=str(folder)).eval())
    before, behind = halves
    assert (before.pads_before, behind.pads_before) == (True, False)
    assert before.fingerprint() != behind.fingerprint()
    tokens = before.tokenize(TEXTS)
    both = before(tokens)
    assert not torch.allclose(both.summary, behind(tokens).summary)
    for row, sentence in enumerate(TEXTS):
        alone = before(before.tokenize([sentence]))
        torch.testing.assert_close(both.values[row, : alone.values.shape[1]], alone.values[0], rtol=0, atol=1e-5)
    # The vector is the last state's, which is the text's last token only where padding stands before it.
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    last = torch.stack([row[mask][-1] for row, mask in zip(both.values, both.mask, strict=True)])
    torch.testing.assert_close(theirs.text_model.head(last), both.summary, rtol=0, atol=1e-5)


def test_the_tokenizer_of_siglip_itself_is_read(tmp_path):
    """It is a sentencepiece model, without a fast form."""
    import sentencepiece as pieces

    folder = save_dual("siglip", tmp_path / "siglip")
    (folder / "tokenizer.json").unlink()
    options = {"vocab_size": 40, "pad_id": -1, "bos_id": -1, "eos_id": 1, "unk_id": 0, "hard_vocab_limit": False}
    with (folder / "spiece.model").open("wb") as file:
        pieces.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS * 20), model_writer=file, **options)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "SiglipTokenizer", "do_lower_case": true}')
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= {"vocab_size": 64}
    transformers.SiglipModel(transformers.SiglipConfig(**config)).save_pretrained(folder)
    text = encoders.build("dual_text", model=str(folder)).eval()
    assert text.pad == 1
    assert torch.equal(text.tokenize(["A dog, RUNS!"]).ids, text.tokenize(["a dog runs"]).ids)
    assert [word.text for word in align_words(text, "a dog runs")][-1] == "</s>"
    again = encoders.build(**text.config)
    again.load_state_dict(text.state_dict())
    text.save_preprocessing(tmp_path)
    again.load_preprocessing(tmp_path)
    assert again.fingerprint() == text.fingerprint()
    assert len(text.tokenize_words(["a dog"])[0]) == text.tokenize(["a dog"]).ids.shape[1]


def test_a_tokenizer_whose_package_is_missing_says_which(tmp_path, monkeypatch):
    folder = save_dual("siglip", tmp_path)

    def fail(*_, **__):
        raise ImportError("\nSiglipTokenizer requires the SentencePiece library but it was not found")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fail)
    with pytest.raises(PolysemError, match="pip install sentencepiece"):
        encoders.build("dual_text", model=str(folder))


@torch.no_grad()
def test_the_first_clips_end_a_text_at_its_largest_id(tmp_path):
    """Their configs name 2 as the end, which it is not: transformers then takes the largest id."""
    folder = save_dual("clip", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["eos_token_id"] = 2
    (folder / "config.json").write_text(json.dumps(config))
    given = transformers.AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    given.pop("token_type_ids", None)
    expected = transformers.AutoModel.from_pretrained(folder).eval().get_text_features(**given).pooler_output
    text = encoders.build("dual_text", model=str(folder)).eval()
    torch.testing.assert_close(text(text.tokenize(TEXTS)).summary, expected, rtol=0, atol=1e-5)
    alone = torch.cat([text(text.tokenize([sentence])).summary for sentence in TEXTS])
    torch.testing.assert_close(alone, expected, rtol=0, atol=1e-5)


OLD = {"feature_extractor_type": "CLIPFeatureExtractor", "size": 32, "crop_size": 32, "resample": 3}


@pytest.mark.parametrize("form", ["new", "old"])
def test_image_processors_are_read_as_any_release_of_transformers_wrote_them(form, tmp_path):
    folder = save_dual("clip", tmp_path)
    expected = encoders.build("dual_image", model=str(folder))
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    if form == "new":  # inside processor_config.json
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        (folder / "preprocessor_config.json").unlink()
        transformers.CLIPProcessor(image_processor=processor, tokenizer=tokenizer).save_pretrained(folder)
        assert not (folder / "preprocessor_config.json").exists()
    else:
        means = {"image_mean": list(processor.image_mean), "image_std": list(processor.image_std)}
        (folder / "preprocessor_config.json").write_text(json.dumps({**OLD, **means}))
    image = encoders.build("dual_image", model=str(folder))
    assert torch.equal(image.preprocess(pictures()[0]), expected.preprocess(pictures()[0]))


def test_a_folder_without_an_image_processor_says_so(tmp_path):
    folder = save_dual("clip", tmp_path)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(PolysemError, match=r"no image processor .*preprocessor_config\.json"):
        encoders.build("dual_image", model=str(folder))
