"""Released models as configs and weights of our parts: VSE∞, VSE+2AD, DivE and label-wise semantic sharing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from polysem.errors import PolysemError
from polysem.models.build import build
from polysem.models.importing.checkpoint import CheckpointTensors, ImportedCheckpointError, ReleasedCheckpoint
from polysem.models.model import Model
from polysem.registry import Part


@dataclass(frozen=True)
class ImportedTower:
    """A tower to be: its config, and the tensors of its parts by place, such as "encoder" or "sets.pooling".

    official: under the authors' names. own: under ours, for parts that were never theirs, such as BERT.
    dropped: tensors without effect on an embedding, each with the reason.
    """

    config: dict[str, Any]
    official: Mapping[str, Mapping[str, Tensor]]
    own: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImportPlan:
    """A model to be."""

    dim: int
    image: ImportedTower
    text: ImportedTower
    similarity: dict[str, Any]

    def build(self, file: str) -> Model:
        """The model with the checkpoint's weights. file: its name, for messages."""
        try:
            model = build(dim=self.dim, image=self.image.config, text=self.text.config, similarity=self.similarity)
        except PolysemError as error:
            raise ImportedCheckpointError(f"{file} describes a model that cannot be built. {error}") from None
        for side, tower in (("image", self.image), ("text", self.text)):
            try:
                for place, state in tower.official.items():
                    cast(Part, model.get_submodule(f"{side}.{place}")).load_official(state)
                for place, state in tower.own.items():
                    model.get_submodule(f"{side}.{place}").load_state_dict(dict(state))
            except (PolysemError, RuntimeError) as error:
                # torch lists every tensor that does not fit, on a line of its own.
                problem = f"{' '.join(str(error).split()):.400} Get the file again."
                known = isinstance(error, PolysemError)
                raise ImportedCheckpointError(f"{file}, {side}.{place}: {error if known else problem}") from None
        return model.eval()


# ----------------------------------------------------------------------------------------------------- VSE∞ and VSE+2AD

# Modules that read pictures. Their networks (a caffe-style ResNet of a detector, ResNeXt-WSL, torchvision's ResNet with
# strides of its own) have no counterpart among our backbones.
_READS_PICTURES = ("backbone.", "image_encoder.", "cnn.", "vit.")
_UNUSED_NORM = "mlp.bns.1."
_BERT_UNUSED = ("pooler.", "embeddings.position_ids")


def plan_vse_infty(checkpoint: ReleasedCheckpoint) -> ImportPlan:
    return _plan_vse(checkpoint, "gpool.", "gpo", checkpoint.variant)


def plan_vse_2ad(checkpoint: ReleasedCheckpoint) -> ImportPlan:
    # AdPool as printed has other weights than as released, so "paper" here is the released form with padding left out.
    return _plan_vse(checkpoint, "pool.", "adpool", "official" if checkpoint.variant == "official" else "corrected")


def _plan_vse(checkpoint: ReleasedCheckpoint, prefix: str, pooling: str, variant: str) -> ImportPlan:
    """Region features with a residual MLP, and a BiGRU or BERT with a projection, each side pooled to one vector."""
    checkpoint.require({"no_imgnorm": False, "no_txtnorm": False}, "a model")
    image, text = checkpoint.modules["image"], checkpoint.modules["text"]
    _refuse_pictures(image)
    width, input_dim = image.sizes("fc.weight", 2)
    form = "vse_infty" if image.under("mlp.") else "linear"
    region = {"name": "region", "input_dim": input_dim, "dim": width, "form": form, "variant": checkpoint.variant}
    sets = {"name": "single", "pooling": pooling, "knobs": {"variant": variant}}
    unused = len(image.under(_UNUSED_NORM))
    image_tower = ImportedTower(
        {"encoder": region, "sets": sets},
        {"encoder": image.without(prefix), "sets.pooling": image.under(prefix)},
        dropped=(f"{unused} of {_UNUSED_NORM}*, which the released code never calls",) if unused else (),
    )
    body, pooled = text.without(prefix), {"sets.pooling": text.under(prefix)}
    if not text.under("bert."):
        encoder = _bigru(checkpoint, body, width)
        text_tower = ImportedTower({"encoder": encoder, "sets": sets}, {"encoder": body, **pooled})
        return ImportPlan(width, image_tower, text_tower, {"name": "cosine"})
    body.refuse_others("bert.", "linear.")
    checkpoint.check_width(width, body.sizes("linear.weight", 2)[0])
    bert = body.under("bert.")
    own = {f"backbone.{name}": tensor for name, tensor in bert.without(*_BERT_UNUSED).items()}
    unused = len(bert) - len(own)
    own |= {f"projection.{name}": tensor for name, tensor in body.under("linear.").items()}
    encoder = {"name": "transformer", "model": "bert", "dim": width, "pretrained": False}
    encoder["backbone_config"] = _bert_config(bert, checkpoint.bert_heads)
    text_tower = ImportedTower(
        {"encoder": encoder, "sets": sets},
        pooled,
        {"encoder": own},
        (f"{unused} of BERT's pooler and position numbers, which no embedding depends on",) if unused else (),
    )
    return ImportPlan(width, image_tower, text_tower, {"name": "cosine"})


def _refuse_pictures(image: CheckpointTensors) -> None:
    for name in image:
        if name.startswith(_READS_PICTURES):
            raise ImportedCheckpointError(
                f"{image.where} reads pictures with a network of its own ({name}), which polysem cannot rebuild. "
                "Models on precomputed region features can be imported; for pictures train one with `polysem train`."
            )


def _bigru(checkpoint: ReleasedCheckpoint, text: CheckpointTensors, width: int, **knobs: Any) -> dict[str, Any]:
    """The config of a word embedding read by a GRU whose states are as wide as the image side."""
    vocab_size, word_dim = text.sizes("embed.weight", 2)
    checkpoint.check_width(width, text.sizes("rnn.weight_hh_l0", 2)[1])
    sizes = {"vocab_size": vocab_size, "word_dim": word_dim, "dim": width}
    return {"name": "bigru", **sizes, "variant": checkpoint.variant, **knobs}


def _bert_config(bert: CheckpointTensors, heads: int | None) -> dict[str, Any]:
    """A BERT as large as these tensors. They do not show its heads: 64 wide each, as every published BERT has them."""
    vocab_size, width = bert.sizes("embeddings.word_embeddings.weight", 2)
    if heads is None and width % 64:
        raise ImportedCheckpointError(
            f"{bert.where}: a BERT of width {width} does not divide into the usual heads of 64, and its tensors do not "
            "show how many there are. Say so: --bert-heads N."
        )
    heads = heads or width // 64
    if heads < 1 or width % heads:
        raise ImportedCheckpointError(
            f"{bert.where}: a BERT of width {width} cannot have {heads} heads. Give a divisor."
        )
    return {
        "model_type": "bert",
        "vocab_size": vocab_size,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_hidden_layers": bert.count("encoder.layer."),
        "intermediate_size": bert.sizes("encoder.layer.0.intermediate.dense.weight", 2)[0],
        "max_position_embeddings": bert.sizes("embeddings.position_embeddings.weight", 2)[0],
        "type_vocab_size": bert.sizes("embeddings.token_type_embeddings.weight", 2)[0],
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }


# ----------------------------------------------------------------------------------------------------------------- DivE

# Options that build another model than ours. Those that only matter in training are not here.
_DIVE_ON = (
    "gpo_rnn",
    "gpo_1x1",
    "spm_pre_norm",
    "spm_last_ln",
    "spm_residual",
    "spm_residual_norm",
    "img_res_first_fc",
)
_DIVE_OFF = ("use_bert", "query_slot", "txt_pooling_fc", "spm_post_norm", "spm_residual_fc")
_DIVE_OFF_IMAGE = ("img_res_last_fc", "img_res_first_pool", "img_res_last_pool")
_DIVE_EXPECTED = {
    **{"arch": "slot", "spm_activation": "gelu", "txt_pooling": "rnn", "denominator": 2.0},
    **dict.fromkeys(_DIVE_ON, True),
    **dict.fromkeys(_DIVE_OFF + _DIVE_OFF_IMAGE, False),
}
_DIVE_HEADS = 4  # written into the released code
_SIMILARITIES = {"smooth_chamfer": "smooth_chamfer", "chamfer": "chamfer", "max": "mil"}


def plan_dive(checkpoint: ReleasedCheckpoint) -> ImportPlan:
    """Region features and a BiGRU, each to a set of slots, compared by smooth-Chamfer."""
    variant, options = checkpoint.variant, checkpoint.options
    image, text = checkpoint.modules["image"], checkpoint.modules["text"]
    _refuse_pictures(image)
    checkpoint.require(_DIVE_EXPECTED, "a DivE model")
    dropout = options.get("dropout", 0.0)
    dim, input_dim = image.sizes("fc.weight", 2)
    region = {"name": "region", "form": "dive", "input_dim": input_dim, "dim": dim, "variant": variant}
    image_tower = ImportedTower(
        {
            "encoder": {**region, "dropout": options.get("img_1x1_dropout", 0.0)},
            "pool": {"name": checkpoint.choose("img_res_pool", {"max": "max", "avg": "mean"})},
            "sets": _dive_slots(checkpoint, image.under("spm."), dim, "img", dropout),
        },
        {"encoder": image.without("spm."), "sets": image.under("spm.")},
    )
    words = checkpoint.choose("txt_attention_input", {"wemb": "words", "rnn": "states"})
    text_dropout = 0.0 if options.get("rnn_no_dropout") else dropout
    text_tower = ImportedTower(
        {
            "encoder": _bigru(checkpoint, text.without("spm."), dim, local=words, dropout=text_dropout),
            "sets": _dive_slots(checkpoint, text.under("spm."), dim, "txt", dropout),
        },
        {"encoder": text.without("spm."), "sets": text.under("spm.")},
    )
    similarity = {"name": checkpoint.choose("eval_similarity", _SIMILARITIES)}
    if similarity["name"] == "smooth_chamfer":
        similarity["alpha"] = checkpoint.option("temperature")
    return ImportPlan(dim, image_tower, text_tower, similarity)


def _dive_slots(
    checkpoint: ReleasedCheckpoint, spm: CheckpointTensors, dim: int, side: str, dropout: float
) -> dict[str, Any]:
    k, width = spm.sizes("agg_block.latents", 2)
    if width != dim:
        raise ImportedCheckpointError(f"{spm.where}: slots of width {width} in a model of width {dim}.")
    inner, _ = spm.sizes("agg_block.layers.0.0.fn.to_q.weight", 2)
    hidden, _ = spm.sizes("agg_block.layers.0.2.fn.net.0.weight", 2)
    # Tied weights are listed once per iteration: every layer is the first again.
    layers = [spm.under(f"agg_block.layers.{step}.") for step in range(spm.count("agg_block.layers."))]
    tied = all(
        name in layer and torch.equal(layer[name], tensor) for layer in layers for name, tensor in layers[0].items()
    )
    return {
        "name": "slots",
        "dim": dim,
        "k": k,
        "input_dim": spm.sizes("agg_block.layers.0.0.fn.to_k.weight", 2)[1],
        "iterations": checkpoint.options.get("spm_depth", len(layers)),
        "tied": checkpoint.options.get("spm_weight_sharing", tied),
        "heads": _DIVE_HEADS,
        "head_dim": inner // _DIVE_HEADS,
        "ff_mult": hidden // dim,
        "dropout": dropout,
        "position": checkpoint.choose(f"spm_{side}_pos_enc_type", {"none": "none", "sine": "sine"}),
        "variant": checkpoint.variant,
    }


# ------------------------------------------------------------------------------------------ label-wise semantic sharing

_LABELWISE_UNUSED = {
    ("head.fc_MLM.", "head.fc_MOC."): "the head's fc_MLM and fc_MOC, which guess masked words and regions in training",
    ("transformer.fc_predict.",): "the transformer's fc_predict, which the released code never calls",
}
_BOX_WEIGHT, _POSITION_WEIGHT, _LABELWISE_HEADS = 1e-4, 1e-5, 8  # written into the released code


def plan_labelwise(checkpoint: ReleasedCheckpoint) -> ImportPlan:
    """Regions with their boxes and a BiGRU, both read by one transformer and one classifier.

    What the released code computes, and where it goes here:

      image  (fc(x) + 1e-4 box_fc(box)) / 2   one linear map of [x; box]: features are given with their five box numbers
      text   (BiGRU(words) + 1e-5 P_0) / 2    a projection after the BiGRU; P_0, as every position number is 0 there
      both   transformer, classifier, mean    the shared set predictor `classes`
    """
    image, text, transformer, head = (checkpoint.modules[name] for name in ("image", "text", "transformer", "head"))
    width, regions = image.sizes("fc.weight", 2)
    boxes = image.sizes("box_fc.weight", 2)[1]
    classes = head.sizes("fc_predict.weight", 2)[0]
    words = text.without("position_embeddings.")
    linear = {"name": "region", "form": "linear", "dim": width, "variant": checkpoint.variant}
    sets = {
        "name": "classes",
        "dim": classes,
        "input_dim": width,
        "layers": transformer.count("encoder.layers."),
        "heads": _LABELWISE_HEADS,
        "ff": transformer.sizes("encoder.layers.0.feed_forward.w_1.weight", 2)[0],
        "normalise": False,
        "variant": checkpoint.variant,
    }
    shared = {
        f"{part}.{name}": t for part, s in (("transformer", transformer), ("head", head)) for name, t in s.items()
    }
    image.refuse_others("fc.", "box_fc.")
    for name in ("fc.bias", "box_fc.bias"):
        image.sizes(name, 1)
    with_boxes = {
        "fc.weight": torch.cat([image["fc.weight"], _BOX_WEIGHT * image["box_fc.weight"]], dim=1) / 2,
        "fc.bias": (image["fc.bias"] + _BOX_WEIGHT * image["box_fc.bias"]) / 2,
    }
    image_tower = ImportedTower(
        {"encoder": {**linear, "input_dim": regions + boxes}, "sets": sets},
        {"encoder": with_boxes, "sets": shared},
        dropped=tuple(
            why for prefixes, why in _LABELWISE_UNUSED.items() if any(n.startswith(prefixes) for n in shared)
        ),
    )
    text.sizes("position_embeddings.weight", 2)
    first = text["position_embeddings.weight"][0]
    text_tower = ImportedTower(
        {"encoder": _bigru(checkpoint, words, width), "project": {**linear, "input_dim": width}, "sets": "shared"},
        {
            "encoder": words,
            "project": {"fc.weight": torch.eye(len(first)) / 2, "fc.bias": _POSITION_WEIGHT * first / 2},
        },
        dropped=("all position embeddings but the first, which the released code never reads",),
    )
    # Flickr25K and NUS-WIDE were compared by cosine, COCO by the product.
    product = "coco" in str(checkpoint.options.get("data_name", ""))
    return ImportPlan(classes, image_tower, text_tower, {"name": "mil" if product else "cosine"})
