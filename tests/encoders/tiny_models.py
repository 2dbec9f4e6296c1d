"""Tiny random models of every Hugging Face family, saved as their users would save them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

SIDE = 32
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS += ["a", "the", "dog", "cat", "runs", "sits", "on", "red", "blue", "ball", "big", "small", "and", "grass"]

TINY_RESNET = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "layer_type": "basic"}
TINY_VIT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
TINY_TEXT = {**TINY_VIT, "vocab_size": len(WORDS), "max_position_embeddings": 40, "bos_token_id": 2, "eos_token_id": 3}


def _resnet() -> Any:
    return transformers.ResNetModel(transformers.ResNetConfig(**TINY_RESNET))


def _convnext() -> Any:
    return transformers.ConvNextModel(transformers.ConvNextConfig(hidden_sizes=[8, 8, 12, 16], depths=[1, 1, 1, 1]))


def _regnet() -> Any:
    config = transformers.RegNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 12, 16], depths=[1, 1, 1, 1], groups_width=4
    )
    return transformers.RegNetModel(config)


def _swin() -> Any:
    config = transformers.SwinConfig(
        image_size=SIDE, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    return transformers.SwinModel(config)


def _bit() -> Any:
    config = transformers.BitConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_groups=4, layer_type="preactivation"
    )
    return transformers.BitModel(config)


def _vit() -> Any:
    return transformers.ViTModel(transformers.ViTConfig(**TINY_VIT, image_size=SIDE, patch_size=8))


def _clip() -> Any:
    vision = {**TINY_VIT, "image_size": SIDE, "patch_size": 8}
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=TINY_TEXT, vision_config=vision))


def _siglip() -> Any:
    vision = {**TINY_VIT, "image_size": SIDE, "patch_size": 8}
    return transformers.SiglipModel(transformers.SiglipConfig(text_config=TINY_TEXT, vision_config=vision))


def _dinov2() -> Any:
    knobs = {key: value for key, value in TINY_VIT.items() if key != "intermediate_size"}
    return transformers.Dinov2Model(transformers.Dinov2Config(**knobs, image_size=SIDE, patch_size=8))


def _dinov2_with_registers() -> Any:
    knobs = {key: value for key, value in TINY_VIT.items() if key != "intermediate_size"}
    config = transformers.Dinov2WithRegistersConfig(**knobs, image_size=SIDE, patch_size=8, num_register_tokens=3)
    return transformers.Dinov2WithRegistersModel(config)


def _dinov3() -> Any:
    config = transformers.DINOv3ViTConfig(**TINY_VIT, image_size=SIDE, patch_size=8, num_register_tokens=2)
    return transformers.DINOv3ViTModel(config)


def _detr() -> Any:
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        backbone_config=transformers.ResNetConfig(**TINY_RESNET, out_features=["stage2"]),
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        num_queries=9,
        num_labels=5,
    )
    return transformers.DetrForObjectDetection(config)


_RT = {
    "encoder_hidden_dim": 16,
    "encoder_ffn_dim": 24,
    "encoder_attention_heads": 2,
    "d_model": 16,
    "num_queries": 9,
    "decoder_layers": 2,
    "decoder_ffn_dim": 24,
    "decoder_attention_heads": 2,
    "decoder_n_points": 2,
    "num_denoising": 0,
    "num_labels": 5,
    "encoder_in_channels": [8, 12, 16],
    "decoder_in_channels": [16, 16, 16],
}


def _rt_detr() -> Any:
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 12, 16], depths=[1, 1, 1, 1], layer_type="basic", out_indices=[2, 3, 4]
    )
    return transformers.RTDetrForObjectDetection(transformers.RTDetrConfig(backbone_config=backbone, **_RT))


def _d_fine() -> Any:
    backbone = transformers.HGNetV2Config(
        embedding_size=8,
        hidden_sizes=[8, 8, 12, 16],
        depths=[1, 1, 1, 1],
        stem_channels=[3, 8, 8],
        stage_in_channels=[8, 8, 8, 12],
        stage_mid_channels=[4, 4, 4, 4],
        stage_out_channels=[8, 8, 12, 16],
        stage_num_blocks=[1, 1, 1, 1],
        stage_numb_of_layers=[1, 1, 1, 1],
        out_indices=[2, 3, 4],
    )
    config = transformers.DFineConfig(
        backbone_config=backbone, **{**_RT, "decoder_n_points": [2, 2, 2]}, hidden_expansion=0.5
    )
    return transformers.DFineForObjectDetection(config)


def _owlvit() -> Any:
    vision = {**TINY_VIT, "image_size": SIDE, "patch_size": 8}
    return transformers.OwlViTForObjectDetection(transformers.OwlViTConfig(text_config=TINY_TEXT, vision_config=vision))


def _owlv2() -> Any:
    vision = {**TINY_VIT, "image_size": SIDE, "patch_size": 8}
    return transformers.Owlv2ForObjectDetection(transformers.Owlv2Config(text_config=TINY_TEXT, vision_config=vision))


def _bert() -> Any:
    return transformers.BertModel(transformers.BertConfig(**TINY_TEXT))


def _roberta() -> Any:
    return transformers.RobertaModel(transformers.RobertaConfig(**TINY_TEXT, pad_token_id=0))


def _mpnet() -> Any:
    return transformers.MPNetModel(transformers.MPNetConfig(**TINY_TEXT, pad_token_id=0))


def _modernbert() -> Any:
    config = transformers.ModernBertConfig(**TINY_TEXT, pad_token_id=0, cls_token_id=2, sep_token_id=3)
    return transformers.ModernBertModel(config)


GRIDS: dict[str, Callable[[], Any]] = {
    "resnet": _resnet, "convnext": _convnext, "regnet": _regnet, "swin": _swin, "bit": _bit,
}  # fmt: skip
PATCHES: dict[str, Callable[[], Any]] = {
    "vit": _vit, "clip": _clip, "siglip": _siglip, "dinov2": _dinov2, "dinov2_with_registers": _dinov2_with_registers,
    "dinov3": _dinov3,
}  # fmt: skip
DETECTORS: dict[str, Callable[[], Any]] = {
    "detr": _detr, "rt_detr": _rt_detr, "d_fine": _d_fine, "owlvit": _owlvit, "owlv2": _owlv2,
}  # fmt: skip
TEXTS: dict[str, Callable[[], Any]] = {
    "bert": _bert, "roberta": _roberta, "mpnet": _mpnet, "modernbert": _modernbert,
}  # fmt: skip
FAMILIES = {**GRIDS, **PATCHES, **DETECTORS, **TEXTS}
ENCODER = {
    **dict.fromkeys(GRIDS, "grid"),
    **dict.fromkeys(PATCHES, "patch"),
    **dict.fromkeys(DETECTORS, "detector"),
    **dict.fromkeys(TEXTS, "transformer"),
}


# Pictures large enough for more than one cell; fewer regions than the tiny detectors have queries.
KNOBS: dict[str, dict[str, Any]] = {
    **{family: {"image_size": 128 if family in ("convnext", "regnet") else SIDE} for family in GRIDS},
    **{family: {"image_size": SIDE, "regions": 4} for family in DETECTORS},
}


def save(family: str, folder: Path) -> Path:
    """A random model of this family in `folder`, with a tokenizer if it reads texts."""
    torch.manual_seed(1)
    model = FAMILIES[family]().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # as trained: nothing is left at 0 or 1
            parameter.add_(0.1 * torch.randn_like(parameter))
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    if family in TEXTS:
        save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
