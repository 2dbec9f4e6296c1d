"""Pretrained image-text dual encoders as models, without training: CLIP, SigLIP and their relatives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from polysem import encoders, sets
from polysem.encoders import backbones
from polysem.encoders.dual import DualImage, is_dual_encoder
from polysem.models.model import Model
from polysem.models.tower import Tower
from polysem.similarity import build as build_similarity


def find_dual_encoder(folder: Path) -> Path | None:
    """The folder of the Hugging Face dual encoder in a folder: itself, or within one of sentence-transformers' CLIP."""
    if is_dual_encoder(folder):
        return folder
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        inner = [folder / str(module["path"]) for module in modules]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return next((path for path in inner if path != folder and is_dual_encoder(path)), None)


def load_dual_encoder(folder: Path, name: str) -> Model:
    """The dual encoder in a folder as a model of one vector per item.

    Args:
        folder: of the Hugging Face model, with its tokenizer and image processor.
        name: what the user calls it; kept in the model's provenance.
    """
    # By the name that the user knows, which says more on another machine than where its files are on this one.
    source = name if backbones.locate(name) == folder else str(folder)
    image, text = (encoders.build(half, model=source) for half in ("dual_image", "dual_text"))
    dim, (scale, bias) = cast(DualImage, image).summary_dim, cast(DualImage, image).logit
    first, second = (Tower(half, sets.build("global_feature", dim=dim, input_dim=half.dim)) for half in (image, text))
    similarity = build_similarity("cosine", logit_scale=scale, logit_bias=bias)
    model = Model(dim, first, second, similarity)
    model.provenance = {"pretrained": name}
    return model.eval()
