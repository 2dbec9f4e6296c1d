"""How well labels are predicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from polysem.errors import InputError, kind

THRESHOLD = 0.5
"""The probability from which on a label counts as predicted."""


def micro_f1(probabilities: Any, labels: Sequence[Iterable[str]], classes: Sequence[str]) -> float:
    """F1 of all decisions together, in per cent: 2 hits / (predicted labels + true labels).

    probabilities: (items, classes). labels: of each item; one that is no class cannot be predicted, and is missed.
    """
    given = np.asarray(probabilities.detach().cpu() if isinstance(probabilities, Tensor) else probabilities)
    if given.shape != (len(labels), len(classes)):
        raise InputError(
            f"Predictions are probabilities of {len(labels)} items × {len(classes)} classes, got {kind(given)}. "
            'Columns are the labels of the collection in alphabetical order, or those that "classes" names.'
        )
    if not np.isfinite(given).all():
        raise InputError("Predictions hold NaN or infinity. Look for a training run that diverged.")
    predicted, number = given >= THRESHOLD, {name: place for place, name in enumerate(classes)}
    hits = true = 0
    for row, names in zip(predicted, labels, strict=True):
        own = set(names)
        true += len(own)
        hits += int(row[[number[name] for name in own if name in number]].sum())
    return 200.0 * hits / max(1, int(predicted.sum()) + true)
