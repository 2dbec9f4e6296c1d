"""The labels of a collection as training reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polysem.data.collection import Collection
from polysem.errors import InputError
from polysem.objectives import LabelObjective, registry
from polysem.recipes import Recipe


def learns_labels(recipe: Recipe) -> bool:
    """Whether the objective is about labels rather than pairs."""
    return issubclass(registry.find(recipe.objective["name"]), LabelObjective)


def label_names(train: Collection) -> list[str]:
    """Every label of the training items: the classes of a model that learns them."""
    found = train.label_names
    if not found:
        raise InputError(
            f"{train.name} has no labels to learn from. Give it a table captions.csv or captions.jsonl with a column "
            "`labels`, put COCO's instances_*.json beside its captions, take the names of subfolders with "
            "--folder-labels, or choose a recipe that learns from pairs."
        )
    return found


def label_flags(collection: Collection, labels: Sequence[str]) -> Tensor:
    """(items, classes): 1 where an item has the label. Labels that are no class do not count."""
    number = {label: place for place, label in enumerate(labels)}
    flags = torch.zeros(len(collection), len(number))
    for row, item in zip(flags, collection, strict=True):
        row[[number[label] for label in item.labels if label in number]] = 1.0
    return flags
