"""DivE: region features and a BiGRU, each to a set of slots, compared by smooth-Chamfer."""

from __future__ import annotations

from typing import Any

import torch

from polysem.models.importing.checkpoint import (
    CheckpointError,
    CheckpointTensors,
    ImportedTower,
    ImportOptions,
    ImportPlan,
    ReleasedCheckpoint,
    Variant,
)
from polysem.models.importing.vse import bigru, refuse_pictures, same_width

# Options that build another model than ours. Those that only matter in training are not here.
_EXPECTED = {
    "arch": "slot",
    "use_bert": False,
    "gpo_rnn": True,
    "gpo_1x1": True,
    "spm_pre_norm": True,
    "spm_post_norm": False,
    "spm_activation": "gelu",
    "spm_last_ln": True,
    "spm_residual": True,
    "spm_residual_norm": True,
    "spm_residual_fc": False,
    "query_slot": False,
    "txt_pooling": "rnn",
    "txt_pooling_fc": False,
    "img_res_first_fc": True,
    "img_res_last_fc": False,
    "img_res_first_pool": False,
    "img_res_last_pool": False,
    "denominator": 2.0,
}
_HEADS = 4  # written into the released code
_SIMILARITIES = {"smooth_chamfer": "smooth_chamfer", "chamfer": "chamfer", "max": "mil"}
_POOLS = {"max": "max", "avg": "mean"}
_LOCAL = {"wemb": "words", "rnn": "states"}


def plan(checkpoint: ReleasedCheckpoint, wanted: ImportOptions) -> ImportPlan:
    variant = wanted.variant
    image, text, options = checkpoint.modules["image"], checkpoint.modules["text"], checkpoint.options
    refuse_pictures(image)
    checkpoint.require(_EXPECTED, "a DivE model")
    dropout = options.get("dropout", 0.0)
    dim, input_dim = image.sizes("fc.weight", 2)
    region = {"name": "region", "form": "dive", "input_dim": input_dim, "dim": dim, "variant": variant}
    pool = _known(checkpoint, "img_res_pool", _POOLS)
    image_tower = ImportedTower(
        {
            "encoder": {**region, "dropout": options.get("img_1x1_dropout", 0.0)},
            "pool": {"name": pool},
            "sets": _slots(checkpoint, image.under("spm."), dim, "img", dropout, variant),
        },
        {"encoder": image.without("spm."), "sets": image.under("spm.")},
    )
    words = _known(checkpoint, "txt_attention_input", _LOCAL)
    text_dropout = 0.0 if options.get("rnn_no_dropout") else dropout
    text_dim, encoder = bigru(text.without("spm."), variant, local=words, dropout=text_dropout)
    text_tower = ImportedTower(
        {"encoder": encoder, "sets": _slots(checkpoint, text.under("spm."), dim, "txt", dropout, variant)},
        {"encoder": text.without("spm."), "sets": text.under("spm.")},
    )
    return ImportPlan(same_width(checkpoint, dim, text_dim), image_tower, text_tower, _similarity(checkpoint))


def _slots(
    checkpoint: ReleasedCheckpoint, spm: CheckpointTensors, dim: int, side: str, dropout: float, variant: Variant
) -> dict[str, Any]:
    k, width = spm.sizes("agg_block.latents", 2)
    if width != dim:
        raise CheckpointError(f"{spm.where}: slots of width {width} in a model of width {dim}; expected the same.")
    inner, _ = spm.sizes("agg_block.layers.0.0.fn.to_q.weight", 2)
    hidden, _ = spm.sizes("agg_block.layers.0.2.fn.net.0.weight", 2)
    iterations = checkpoint.options.get("spm_depth", spm.count("agg_block.layers."))
    position = {name: name for name in ("none", "sine")}
    return {
        "name": "slots",
        "dim": dim,
        "k": k,
        "input_dim": spm.sizes("agg_block.layers.0.0.fn.to_k.weight", 2)[1],
        "iterations": iterations,
        "tied": checkpoint.options.get("spm_weight_sharing", _repeats(spm)),
        "heads": _HEADS,
        "head_dim": inner // _HEADS,
        "ff_mult": hidden // dim,
        "dropout": dropout,
        "position": _known(checkpoint, f"spm_{side}_pos_enc_type", position),
        "variant": variant,
    }


def _repeats(spm: CheckpointTensors) -> bool:
    """Whether every layer is the first again: tied weights are listed once per iteration."""
    first = spm.under("agg_block.layers.0.")
    layers = [spm.under(f"agg_block.layers.{step}.") for step in range(spm.count("agg_block.layers."))]
    return all(name in layer and torch.equal(layer[name], tensor) for layer in layers for name, tensor in first.items())


def _similarity(checkpoint: ReleasedCheckpoint) -> dict[str, Any]:
    name = _known(checkpoint, "eval_similarity", _SIMILARITIES)
    if name != "smooth_chamfer":
        return {"name": name}
    return {"name": name, "alpha": _option(checkpoint, "temperature")}


def _option(checkpoint: ReleasedCheckpoint, name: str) -> Any:
    if name not in checkpoint.options:
        raise CheckpointError(
            f"{checkpoint.file} does not say with which {name} it was trained, and its tensors do not show it. "
            "Expected the options under 'args', as the authors' training script writes them."
        )
    return checkpoint.options[name]


def _known(checkpoint: ReleasedCheckpoint, option: str, ours: dict[str, str]) -> str:
    given = _option(checkpoint, option)
    if given not in ours:
        raise CheckpointError(
            f"{checkpoint.file} was trained with {option}={given!r}; DivE models with {' or '.join(sorted(ours))} can "
            "be imported. There is no counterpart of the other in polysem."
        )
    return ours[given]
