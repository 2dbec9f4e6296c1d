"""A sweep: one recipe trained over and over with other values of some of its keys, and what that changes."""

from polysem.training.sweep.carrying_out import Watcher, sweep
from polysem.training.sweep.plan import Plan, plan
from polysem.training.sweep.result import Row, Run, Sweep

__all__ = ["Plan", "Row", "Run", "Sweep", "Watcher", "plan", "sweep"]
