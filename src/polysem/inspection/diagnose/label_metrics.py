"""How well a model that predicts labels does so, on either side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polysem.evaluation.metrics import THRESHOLD, micro_f1
from polysem.inspection.gallery import Gallery


@dataclass(frozen=True)
class Predicted:
    """present: how many labels the items here have. unknown: those of them that are no class of the model.

    micro_f1: by side, in per cent. silent: by side, the labels that some item here has and that are predicted of none.
    """

    present: int
    unknown: tuple[str, ...]
    micro_f1: Mapping[str, float]
    silent: Mapping[str, tuple[str, ...]]


def predicted(gallery: Gallery) -> Predicted | None:
    """None of a model that predicts no labels, or where the items have none."""
    items, classes, said = gallery.items, gallery.model.labels, gallery.embeddings.predictions
    present = items.label_names
    if not classes or not said or not present:
        return None
    truth = {
        "image": [item.labels for item in items],
        "text": [items[owner].labels for owner in items.caption_items],
    }
    ever = {
        side: {name for name, heard in zip(classes, (flags >= THRESHOLD).any(0).tolist(), strict=True) if heard}
        for side, flags in said.items()
    }
    return Predicted(
        len(present),
        tuple(name for name in present if name not in classes),
        {side: micro_f1(flags, truth[side], classes) for side, flags in said.items()},
        {
            side: tuple(name for name in present if name in classes and name not in names)
            for side, names in ever.items()
        },
    )
