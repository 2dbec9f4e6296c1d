"""Objectives: scores and positives to a loss; and the regularisers that go with sets.

Example:
    >>> import torch
    >>> from polysem import objectives
    >>> scores, positives = torch.tensor([[0.9, 0.8], [0.1, 0.7]]), torch.eye(2, dtype=torch.bool)
    >>> loss = objectives.build("triplet", margin=0.2)(scores, positives)
    >>> {name: round(float(part), 2) for name, part in loss.parts.items()}
    {'i2t': 0.1, 't2i': 0.3}
"""

from polysem.objectives.adopt import AdOpt
from polysem.objectives.base import LabelledBatch, LabelObjective, Loss, Objective, Regulariser, registry
from polysem.objectives.infonce import InfoNCE
from polysem.objectives.label_objectives import DSCMR, SemanticSharingLoss
from polysem.objectives.regularisers import MMD, Diversity
from polysem.objectives.triplet import Triplet

registry.import_folder(__name__, __path__)

build = registry.build
check, names, describe = registry.check, registry.names, registry.describe

__all__ = [
    "LabelObjective",
    "LabelledBatch",
    "Loss",
    "Objective",
    "Regulariser",
    "build",
    "check",
    "describe",
    "names",
    "registry",
]
__all__ += ["DSCMR", "MMD", "AdOpt", "Diversity", "InfoNCE", "SemanticSharingLoss", "Triplet"]
