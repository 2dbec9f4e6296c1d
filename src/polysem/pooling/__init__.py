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

from polysem.pooling.adapool import AdaPool
from polysem.pooling.adpool import AdPool
from polysem.pooling.base import Pooling, registry
from polysem.pooling.fspool import FSPool
from polysem.pooling.gcn import GCN
from polysem.pooling.gpo import GPO
from polysem.pooling.kmax import KMax
from polysem.pooling.lip import LIP
from polysem.pooling.max import Max
from polysem.pooling.mean import Mean
from polysem.pooling.selfattention import SelfAttention
from polysem.pooling.seq2seq import Seq2Seq
from polysem.pooling.softpool import SoftPool

registry.import_folder(__name__, __path__)

build = registry.build
check = registry.check
names = registry.names
describe = registry.describe

__all__ = [
    "GCN",
    "GPO",
    "LIP",
    "AdPool",
    "AdaPool",
    "FSPool",
    "KMax",
    "Max",
    "Mean",
    "Pooling",
    "SelfAttention",
    "Seq2Seq",
    "SoftPool",
    "build",
    "check",
    "describe",
    "names",
    "registry",
]
