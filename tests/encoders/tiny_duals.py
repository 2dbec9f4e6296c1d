"""Tiny random dual encoders of every Hugging Face family, saved as their users would save them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from encoders.tiny_models import SIDE, TINY_TEXT, TINY_VIT, WORDS, save_tokenizer

VISION = {**TINY_VIT, "image_size": SIDE, "patch_size": 8}
BERT = {**TINY_TEXT, "pad_token_id": 0}
CLIP = {
    "model_type": "clip",
    "text_config": {**TINY_TEXT, "vocab_size": 20},
    "vision_config": VISION,
    "projection_dim": 12,
}
SQUARE = {"height": SIDE, "width": SIDE}
CROPPED = {"size": {"shortest_edge": SIDE}, "crop_size": SQUARE}


def _clip() -> Any:
    config = transformers.CLIPConfig(text_config=TINY_TEXT, vision_config=VISION, projection_dim=12)
    return transformers.CLIPModel(config), transformers.CLIPImageProcessorPil


def _metaclip() -> Any:
    config = transformers.MetaClip2Config(text_config=TINY_TEXT, vision_config=VISION, projection_dim=12)
    return transformers.MetaClip2Model(config), transformers.CLIPImageProcessorPil


def _siglip() -> Any:
    config = transformers.SiglipConfig(text_config={**TINY_TEXT, "projection_size": 16}, vision_config=VISION)
    return transformers.SiglipModel(config), transformers.SiglipImageProcessorPil


def _siglip2() -> Any:
    vision = {**TINY_VIT, "patch_size": 8, "num_patches": 16}
    text = {**TINY_TEXT, "projection_size": 16, "bos_token_id": 2, "eos_token_id": 3}
    config = transformers.Siglip2Config(text_config=text, vision_config=vision)
    return transformers.Siglip2Model(config), transformers.Siglip2ImageProcessorPil


def _align() -> Any:
    vision = {
        "image_size": SIDE,
        "hidden_dim": 16,
        "in_channels": [32, 16],
        "out_channels": [16, 32],
        "kernel_sizes": [3, 3],
    }
    vision |= {"strides": [1, 2], "num_block_repeats": [1, 1], "expand_ratios": [1, 2], "depthwise_padding": []}
    vision |= {"width_coefficient": 0.5, "depth_coefficient": 1.0}
    config = transformers.AlignConfig(text_config=BERT, vision_config=vision, projection_dim=16)
    return transformers.AlignModel(config), transformers.EfficientNetImageProcessorPil


def _chinese_clip() -> Any:
    config = transformers.ChineseCLIPConfig(text_config=BERT, vision_config=VISION, projection_dim=12)
    return transformers.ChineseCLIPModel(config), transformers.ChineseCLIPImageProcessorPil


def _altclip() -> Any:
    text = {**BERT, "project_dim": 16, "pad_token_id": 1, "max_position_embeddings": 42}
    config = transformers.AltCLIPConfig(text_config=text, vision_config=VISION, projection_dim=12)
    return transformers.AltCLIPModel(config), transformers.CLIPImageProcessorPil


def _vision_text() -> Any:
    vision, text = transformers.ViTConfig(**VISION), transformers.BertConfig(**BERT)
    config = transformers.VisionTextDualEncoderConfig.from_vision_text_configs(vision, text, projection_dim=12)
    return transformers.VisionTextDualEncoderModel(config), transformers.ViTImageProcessorPil


GEMMA = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *"▁adgo!DAGO"]
"""The tokens of SigLIP 2, which are not those of SigLIP: as many as `TINY_TEXT` has at most."""


def save_gemma_tokenizer(folder: Path) -> None:
    """The tokenizer of the SigLIP 2 models on the hub, which are of the family "siglip" but for NaFlex."""
    vocabulary = {token: number for number, token in enumerate(GEMMA)}
    tokenizer = transformers.GemmaTokenizer(
        vocab=vocabulary, merges=[], add_bos_token=False, add_eos_token=True, padding_side="right"
    )
    tokenizer.save_pretrained(folder)


DUALS: dict[str, Callable[[], Any]] = {
    "clip": _clip,
    "metaclip_2": _metaclip,
    "siglip": _siglip,
    "siglip2": _siglip2,
    "align": _align,
    "chinese_clip": _chinese_clip,
    "altclip": _altclip,
    "vision-text-dual-encoder": _vision_text,
}


def save_dual(family: str, folder: Path) -> Path:
    """A random dual encoder of this family in `folder`, with its tokenizer and its image processor."""
    torch.manual_seed(1)
    model, processor = DUALS[family]()
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    cropped = family in ("clip", "metaclip_2", "altclip")
    if family == "siglip2":
        processor(patch_size=8, max_num_patches=16).save_pretrained(folder)
        return folder
    processor(**(CROPPED if cropped else {"size": SQUARE, "crop_size": SQUARE})).save_pretrained(folder)
    return folder


__all__ = ["DUALS", "WORDS", "save_dual"]
