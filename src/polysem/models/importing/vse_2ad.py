"""VSE+2AD: region features and a BiGRU or BERT, each pooled by AdPool."""

from __future__ import annotations

from polysem.models.importing.plan import Plan, Wanted
from polysem.models.importing.reading import Checkpoint
from polysem.models.importing.towers import region, same_width, text_tower


def plan(checkpoint: Checkpoint, wanted: Wanted) -> Plan:
    checkpoint.require({"no_imgnorm": False, "no_txtnorm": False}, "a model")
    # AdPool as printed has other weights than as released, so "paper" here is the released form with padding left out.
    adpool = {"name": "adpool", "variant": "official" if wanted.variant == "official" else "corrected"}
    width, image = region(checkpoint.modules["image"], "pool.", adpool, wanted)
    text_width, text = text_tower(checkpoint.modules["text"], "pool.", adpool, wanted)
    return Plan(same_width(checkpoint, width, text_width), image, text, {"name": "cosine"})
