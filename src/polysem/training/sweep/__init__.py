"""A sweep: one recipe trained over and over with other values of some of its keys, and what that changes."""

from polysem.training.sweep.plan import Plan, plan
from polysem.training.sweep.result import Row, Run, Sweep
from polysem.training.sweep.run import Watcher, sweep

__all__ = ["Plan", "Row", "Run", "Sweep", "Watcher", "plan", "sweep"]
