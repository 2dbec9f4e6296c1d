"""Set predictors: local features to K vectors per item."""

from polysem.sets.base import SetPrediction, SetPredictor, TokenSum, registry
from polysem.sets.chorus import Chorus
from polysem.sets.classes import Classes
from polysem.sets.common import Common
from polysem.sets.pie_net import PIENet
from polysem.sets.readings import Readings
from polysem.sets.single import Single
from polysem.sets.slots import Slots
from polysem.sets.summary import Summary
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
