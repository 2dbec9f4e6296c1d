"""Protocols: what is searched and what counts as found. Each knows its name and stamps it on its numbers."""

from polysem.evaluation.protocols.base import Measured, Protocol, Subject, catalogue, find, register
from polysem.evaluation.protocols.cxc import Cxc
from polysem.evaluation.protocols.eccv import EccvCaption
from polysem.evaluation.protocols.judgements import Judged
from polysem.evaluation.protocols.labels import Labels
from polysem.evaluation.protocols.pairs import Pairs
from polysem.evaluation.protocols.video import Video

__all__ = [
    "Cxc",
    "EccvCaption",
    "Judged",
    "Labels",
    "Measured",
    "Pairs",
    "Protocol",
    "Subject",
    "Video",
    "catalogue",
    "find",
    "register",
]
