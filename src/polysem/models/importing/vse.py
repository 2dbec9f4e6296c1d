"""VSE∞ and VSE+2AD, each side pooled by GPO or AdPool; and the towers that DivE has in common with them."""

from __future__ import annotations

from typing import Any

from polysem.models.importing.checkpoint import (
    CheckpointError,
    CheckpointTensors,
    ImportedTower,
    ImportOptions,
    ImportPlan,
    ReleasedCheckpoint,
    Variant,
)

# Modules that read pictures. Their networks (a caffe-style ResNet of a detector, ResNeXt-WSL, torchvision's ResNet with
# strides of its own) have no counterpart among our backbones.
_READS_PICTURES = ("backbone.", "image_encoder.", "cnn.", "vit.")
_UNUSED_NORM = "mlp.bns.1."


def refuse_pictures(image: CheckpointTensors) -> None:
    """Raise for a model with an image network of its own."""
    for name in image:
        if name.startswith(_READS_PICTURES):
            raise CheckpointError(
                f"{image.where} reads pictures with a network of its own ({name}), which polysem cannot rebuild. "
                "Models on precomputed region features can be imported; for pictures train one with `polysem train`."
            )


def same_width(checkpoint: ReleasedCheckpoint, image: int, text: int) -> int:
    if image != text:
        raise CheckpointError(
            f"{checkpoint.file}: the image side has width {image}, the text side {text}. They do not belong together: "
            "get the file again."
        )
    return image


def region(
    image: CheckpointTensors, pool_prefix: str, pool: dict[str, Any], wanted: ImportOptions
) -> tuple[int, ImportedTower]:
    """The width and the tower of region features, a residual MLP and a pooling."""
    refuse_pictures(image)
    dim, input_dim = image.sizes("fc.weight", 2)
    form = "vse_infty" if image.under("mlp.") else "linear"
    encoder = {"name": "region", "input_dim": input_dim, "dim": dim, "form": form, "variant": wanted.variant}
    sets = {"name": "single", "pooling": pool["name"], "knobs": _without_name(pool)}
    unused = len(image.under(_UNUSED_NORM))
    return dim, ImportedTower(
        {"encoder": encoder, "sets": sets},
        {"encoder": image.without(pool_prefix), "sets.pooling": image.under(pool_prefix)},
        dropped=(f"{unused} of {_UNUSED_NORM}*, which the released code never calls",) if unused else (),
    )


def bigru(text: CheckpointTensors, variant: Variant, **knobs: Any) -> tuple[int, dict[str, Any]]:
    """The width and the config of a word embedding read by a GRU."""
    vocab_size, word_dim = text.sizes("embed.weight", 2)
    dim = text.sizes("rnn.weight_hh_l0", 2)[1]
    sizes = {"vocab_size": vocab_size, "word_dim": word_dim, "dim": dim}
    return dim, {"name": "bigru", **sizes, "variant": variant, **knobs}


def text_tower(
    text: CheckpointTensors, pool_prefix: str, pool: dict[str, Any], wanted: ImportOptions
) -> tuple[int, ImportedTower]:
    """The width and the tower of a BiGRU, or of BERT with a projection, and a pooling."""
    sets = {"name": "single", "pooling": pool["name"], "knobs": _without_name(pool)}
    pooled = {"sets.pooling": text.under(pool_prefix)}
    body = text.without(pool_prefix)
    if not text.under("bert."):
        dim, encoder = bigru(body, wanted.variant)
        return dim, ImportedTower({"encoder": encoder, "sets": sets}, {"encoder": body, **pooled})
    for name in body.without("bert.", "linear."):
        raise CheckpointError(f"{text.where} holds a tensor {name!r}; expected bert.*, linear.* and {pool_prefix}*.")
    dim = body.sizes("linear.weight", 2)[0]
    bert = body.under("bert.")
    own = {f"backbone.{name}": tensor for name, tensor in bert.without(*_BERT_UNUSED).items()}
    own |= {f"projection.{name}": tensor for name, tensor in body.under("linear.").items()}
    encoder = {
        "name": "transformer",
        "model": "bert",
        "dim": dim,
        "pretrained": False,
        "backbone_config": bert_config(bert, wanted.bert_heads),
    }
    unused = len(bert) - len(bert.without(*_BERT_UNUSED))
    dropped = (f"{unused} of BERT's pooler and position numbers, which no embedding depends on",) if unused else ()
    return dim, ImportedTower({"encoder": encoder, "sets": sets}, pooled, {"encoder": own}, dropped)


_BERT_UNUSED = ("pooler.", "embeddings.position_ids")


def bert_config(bert: CheckpointTensors, heads: int | None) -> dict[str, Any]:
    """A BERT as large as these tensors. They do not show its heads: 64 wide each, as every published BERT has them."""
    vocab_size, width = bert.sizes("embeddings.word_embeddings.weight", 2)
    if heads is None and width % 64:
        raise CheckpointError(
            f"{bert.where}: a BERT of width {width} does not divide into the usual heads of 64, and its tensors do not "
            "show how many there are. Say so: --bert-heads N."
        )
    heads = heads or width // 64
    if heads < 1 or width % heads:
        raise CheckpointError(f"{bert.where}: a BERT of width {width} cannot have {heads} heads. Give a divisor of it.")
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


def _without_name(part: dict[str, Any]) -> dict[str, Any]:
    return {knob: value for knob, value in part.items() if knob != "name"}


def plan_vse_infty(checkpoint: ReleasedCheckpoint, wanted: ImportOptions) -> ImportPlan:
    checkpoint.require({"no_imgnorm": False, "no_txtnorm": False}, "a model")
    gpo = {"name": "gpo", "variant": wanted.variant}
    width, image = region(checkpoint.modules["image"], "gpool.", gpo, wanted)
    text_width, text = text_tower(checkpoint.modules["text"], "gpool.", gpo, wanted)
    return ImportPlan(same_width(checkpoint, width, text_width), image, text, {"name": "cosine"})


def plan_vse_2ad(checkpoint: ReleasedCheckpoint, wanted: ImportOptions) -> ImportPlan:
    checkpoint.require({"no_imgnorm": False, "no_txtnorm": False}, "a model")
    # AdPool as printed has other weights than as released, so "paper" here is the released form with padding left out.
    adpool = {"name": "adpool", "variant": "official" if wanted.variant == "official" else "corrected"}
    width, image = region(checkpoint.modules["image"], "pool.", adpool, wanted)
    text_width, text = text_tower(checkpoint.modules["text"], "pool.", adpool, wanted)
    return ImportPlan(same_width(checkpoint, width, text_width), image, text, {"name": "cosine"})
