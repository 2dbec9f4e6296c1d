"""A sweep: one recipe trained over and over with other values of some of its keys, and what that changes."""

from polysem.training.sweep.plan import SweepPlan, plan_sweep
from polysem.training.sweep.result import Sweep, SweepRow, SweepRun
from polysem.training.sweep.run import SweepObserver, sweep

__all__ = ["Sweep", "SweepObserver", "SweepPlan", "SweepRow", "SweepRun", "plan_sweep", "sweep"]
