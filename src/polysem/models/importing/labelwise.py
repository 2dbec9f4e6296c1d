"""Label-wise semantic sharing: regions with their boxes and a BiGRU, both read by one transformer and one classifier.

What the released code computes, and where it goes here:

  image  (fc(x) + 1e-4 box_fc(box)) / 2   one linear map of [x; box]: features are given with their five box numbers
  text   (BiGRU(words) + 1e-5 P_0) / 2    a projection after the BiGRU; P_0, as every position number is 0 there
  both   transformer, classifier, mean    the shared set predictor `classes`
"""

from __future__ import annotations

import torch
from torch import Tensor

from polysem.models.importing.checkpoint import (
    CheckpointError,
    CheckpointTensors,
    ImportedTower,
    ImportOptions,
    ImportPlan,
    ReleasedCheckpoint,
)
from polysem.models.importing.vse import bigru, same_width

_UNUSED = {
    ("head.fc_MLM.", "head.fc_MOC."): "the head's fc_MLM and fc_MOC, which guess masked words and regions in training",
    ("transformer.fc_predict.",): "the transformer's fc_predict, which the released code never calls",
}
_BOX_WEIGHT, _POSITION_WEIGHT, _HEADS = 1e-4, 1e-5, 8  # written into the released code


def plan(checkpoint: ReleasedCheckpoint, wanted: ImportOptions) -> ImportPlan:
    variant = wanted.variant
    image, text, transformer, head = (checkpoint.modules[name] for name in ("image", "text", "transformer", "head"))
    width, regions = image.sizes("fc.weight", 2)
    boxes = image.sizes("box_fc.weight", 2)[1]
    classes = head.sizes("fc_predict.weight", 2)[0]
    words = text.without("position_embeddings.")
    text_width, encoder = bigru(words, variant)
    same_width(checkpoint, width, text_width)
    linear = {"name": "region", "form": "linear", "dim": width, "variant": variant}
    sets = {
        "name": "classes",
        "dim": classes,
        "input_dim": width,
        "layers": transformer.count("encoder.layers."),
        "heads": _HEADS,
        "ff": transformer.sizes("encoder.layers.0.feed_forward.w_1.weight", 2)[0],
        "normalise": False,
        "variant": variant,
    }
    shared = {f"transformer.{name}": tensor for name, tensor in transformer.items()}
    shared |= {f"head.{name}": tensor for name, tensor in head.items()}
    # Flickr25K and NUS-WIDE were compared by cosine, COCO by the product.
    product = "coco" in str(checkpoint.options.get("data_name", ""))
    return ImportPlan(
        classes,
        ImportedTower(
            {"encoder": {**linear, "input_dim": regions + boxes}, "sets": sets},
            {"encoder": _regions_and_boxes(image), "sets": shared},
            dropped=tuple(
                why for prefixes, why in _UNUSED.items() if any(name.startswith(prefixes) for name in shared)
            ),
        ),
        ImportedTower(
            {"encoder": encoder, "project": {**linear, "input_dim": width}, "sets": "shared"},
            {"encoder": words, "project": _halved_with_position(text)},
            dropped=("all position embeddings but the first, which the released code never reads",),
        ),
        {"name": "mil" if product else "cosine"},
    )


def _regions_and_boxes(image: CheckpointTensors) -> dict[str, Tensor]:
    for name in image.without("fc.", "box_fc."):
        raise CheckpointError(f"{image.where} holds a tensor {name!r}; expected fc.* and box_fc.* alone.")
    for name in ("fc.bias", "box_fc.bias"):
        image.sizes(name, 1)
    return {
        "fc.weight": torch.cat([image["fc.weight"], _BOX_WEIGHT * image["box_fc.weight"]], dim=1) / 2,
        "fc.bias": (image["fc.bias"] + _BOX_WEIGHT * image["box_fc.bias"]) / 2,
    }


def _halved_with_position(text: CheckpointTensors) -> dict[str, Tensor]:
    width = text.sizes("position_embeddings.weight", 2)[1]
    first = text["position_embeddings.weight"][0]
    return {"fc.weight": torch.eye(width) / 2, "fc.bias": _POSITION_WEIGHT * first / 2}
