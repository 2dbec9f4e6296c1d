"""Poolings: local features to one vector per item.

Example:
    >>> import torch
    >>> from polysem import pooling
    >>> from polysem.features import LocalFeatures
    >>> part = pooling.build("kmax", k=2)
    >>> part(LocalFeatures.from_list([torch.tensor([[1.0], [4.0], [2.0]])])).tolist()
    [[3.0]]
    >>> pooling.build(**part.config).config["k"]  # a part is rebuilt from its config
    2
"""

from polysem.pooling.adpool import AdPool
from polysem.pooling.base import Pooling, registry
from polysem.pooling.contextual import GCN, SelfAttention, Seq2Seq
from polysem.pooling.gpo import GPO, FSPool
from polysem.pooling.mean_max import KMax, Max, Mean
from polysem.pooling.softmax_pooling import LIP, AdaPool, SoftPool

registry.import_folder(__name__, __path__)

build = registry.build
check, names, describe = registry.check, registry.names, registry.describe

__all__ = ["Pooling", "build", "check", "describe", "names", "registry"]
__all__ += [
    "GCN",
    "GPO",
    "LIP",
    "AdPool",
    "AdaPool",
    "FSPool",
    "KMax",
    "Max",
    "Mean",
    "SelfAttention",
    "Seq2Seq",
    "SoftPool",
]
