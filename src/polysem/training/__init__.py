"""Training: the loop, exact resume, several processes, and a diagnosis of runs that die."""

from polysem.training.loop import StoppedError
from polysem.training.train import Result, train

__all__ = ["Result", "StoppedError", "train"]
