"""Set predictors: local features to K vectors per item."""

from polysem.sets.attention_pooling import Readings
from polysem.sets.base import SetPrediction, SetPredictor, TokenSum, registry
from polysem.sets.dscmr import Common
from polysem.sets.ensemble import Chorus
from polysem.sets.global_feature import Summary
from polysem.sets.pie_net import PIENet
from polysem.sets.semantic_sharing import Classes
from polysem.sets.single import Single
from polysem.sets.slots import Slots
from polysem.sets.transformer import Transformer

build = registry.build
check = registry.check
names = registry.names
describe = registry.describe

__all__ = [
    "Chorus",
    "Classes",
    "Common",
    "PIENet",
    "Readings",
    "SetPrediction",
    "SetPredictor",
    "Single",
    "Slots",
    "Summary",
    "TokenSum",
    "Transformer",
    "build",
    "check",
    "describe",
    "names",
]
