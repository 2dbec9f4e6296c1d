"""Training: the loop, exact resume, several processes, and a diagnosis of runs that die."""

from typing import TYPE_CHECKING

from polysem._deprecated import find_deprecated
from polysem.training.loop import NullObserver, StoppedError, TrainingObserver
from polysem.training.train import TrainingResult, train

__all__ = ["NullObserver", "StoppedError", "TrainingObserver", "TrainingResult", "train"]

if not TYPE_CHECKING:
    __getattr__ = find_deprecated(__name__)
