"""VSE∞: region features and BERT or a BiGRU, each pooled by GPO."""

from __future__ import annotations

from polysem.models.importing.plan import Plan, Wanted
from polysem.models.importing.reading import Checkpoint
from polysem.models.importing.towers import region, same_width, text_tower


def plan(checkpoint: Checkpoint, wanted: Wanted) -> Plan:
    checkpoint.require({"no_imgnorm": False, "no_txtnorm": False}, "a model")
    gpo = {"name": "gpo", "variant": wanted.variant}
    width, image = region(checkpoint.modules["image"], "gpool.", gpo, wanted)
    text_width, text = text_tower(checkpoint.modules["text"], "gpool.", gpo, wanted)
    return Plan(same_width(checkpoint, width, text_width), image, text, {"name": "cosine"})
