"""Training: the loop, exact resume, several processes, and a diagnosis of runs that die."""

from polysem.training.loop import NullObserver, StoppedError, TrainingObserver
from polysem.training.train import TrainingResult, train

__all__ = ["NullObserver", "StoppedError", "TrainingObserver", "TrainingResult", "train"]
