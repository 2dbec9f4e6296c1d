"""Pretrained image-text dual encoders as models, without training: CLIP, SigLIP and their relatives."""

from __future__ import annotations

from typing import cast

from polysem import encoders, sets
from polysem.encoders.dual import DualImage
from polysem.models.model import Model
from polysem.models.tower import Tower
from polysem.similarity import build as build_similarity


def load_dual_encoder(name: str) -> Model:
    """A dual encoder as a model of one vector per item.

    name: its folder, with tokenizer and image processor, or its name on the hub; kept in the model's provenance, as it
        says more on another machine than where its files are on this one.
    """
    image, text = (encoders.build(half, model=name) for half in ("dual_image", "dual_text"))
    dim, (scale, bias) = cast(DualImage, image).summary_dim, cast(DualImage, image).logit
    first, second = (Tower(half, sets.build("global_feature", dim=dim, input_dim=half.dim)) for half in (image, text))
    similarity = build_similarity("cosine", logit_scale=scale, logit_bias=bias)
    model = Model(dim, first, second, similarity)
    model.provenance = {"pretrained": name}
    return model.eval()
