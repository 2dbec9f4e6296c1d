"""The halves of dual encoders equal transformers' own features, for every family, padded and alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from encoders.tiny_duals import DUALS, save_dual
from polysem import encoders

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
    pixels = processor(images=pictures(), return_tensors="pt")["pixel_values"]
    expected = model.get_image_features(pixel_values=pixels).pooler_output
    prepared = torch.stack([image.preprocess(picture) for picture in pictures()])
    torch.testing.assert_close(prepared, pixels, rtol=0, atol=0)
    torch.testing.assert_close(image(prepared).summary, expected, rtol=0, atol=1e-5)
    for row, picture in enumerate(prepared):
        torch.testing.assert_close(image(picture[None]).summary[0], expected[row], rtol=0, atol=1e-5)
    assert image(prepared).values.shape[1] == len(image.places())


@torch.no_grad()
def test_text_features_are_those_of_transformers(dual):
    folder, model, _, text = dual
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    siglip = model.config.model_type == "siglip"
    given = tokenizer(TEXTS, padding="max_length" if siglip else True, max_length=40 if siglip else None)
    given = {key: torch.tensor(value) for key, value in given.items() if key == "input_ids" or not siglip}
    given.pop("token_type_ids", None)
    expected = model.get_text_features(**given).pooler_output
    torch.testing.assert_close(text(text.tokenize(TEXTS)).summary, expected, rtol=0, atol=1e-5)
    for row, sentence in enumerate(TEXTS):
        torch.testing.assert_close(text(text.tokenize([sentence])).summary[0], expected[row], rtol=0, atol=1e-5)
