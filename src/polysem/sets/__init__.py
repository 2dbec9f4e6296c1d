"""Set predictors: local features to K vectors per item.

Example:
    >>> import torch
    >>> from polysem import sets
    >>> from polysem.features import LocalFeatures
    >>> predictor = sets.build("attention_pooling", dim=8, k=3, input_dim=16)
    >>> prediction = predictor(LocalFeatures.from_lengths(torch.randn(2, 5, 16), lengths=[5, 3]))
    >>> tuple(prediction.vectors.shape), tuple(prediction.attention.shape)
    ((2, 3, 8), (2, 3, 5))
"""

from polysem.sets.attention_pooling import AttentionPooling, PIENet
from polysem.sets.base import SetPrediction, SetPredictor, SetSum, TokenSum, WeightedTokens, registry
from polysem.sets.ensemble import Ensemble
from polysem.sets.readings import CompetingReadings
from polysem.sets.semantic_sharing import SemanticSharing
from polysem.sets.single import CommonSpace, GlobalFeature, Single
from polysem.sets.slots import Slots, TransformerPredictor

registry.import_folder(__name__, __path__)

build = registry.build
check, names, describe = registry.check, registry.names, registry.describe

__all__ = ["SetPrediction", "SetPredictor", "build", "check", "describe", "names", "registry"]
__all__ += ["SetSum", "TokenSum", "WeightedTokens"]
__all__ += [
    "AttentionPooling",
    "CommonSpace",
    "CompetingReadings",
    "Ensemble",
    "GlobalFeature",
    "PIENet",
    "SemanticSharing",
    "Single",
    "Slots",
    "TransformerPredictor",
]
