"""`polysem demo` in a process of its own, on a tiny scale: python run_tiny.py ENCODERS ARGUMENT …

Where the environment variable HELD names a file, the training stops after its first step, makes that file, and waits
for a signal.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import polysem.demo
from demo.tiny import SCENES, fake_packages, tiny_settings
from polysem.cli import main
from polysem.training.loop import DeferredInterrupt, TrainingLoop
from waiting import wait_until


def hold_after_a_step(told: Path) -> None:
    take_step = TrainingLoop.take_step

    def held(self: TrainingLoop, *given: Any) -> None:
        if self.step == 1:
            interrupts = signal.getsignal(signal.SIGINT).__self__  # type: ignore[union-attr]
            assert isinstance(interrupts, DeferredInterrupt)
            told.touch()
            wait_until(lambda: interrupts.requested)
        take_step(self, *given)

    TrainingLoop.take_step = held  # type: ignore[method-assign]


if __name__ == "__main__":
    torch.set_num_threads(1)
    fake_packages(pytest.MonkeyPatch())
    if "HELD" in os.environ:
        hold_after_a_step(Path(os.environ["HELD"]))
    settings = tiny_settings(Path(sys.argv.pop(1)))
    polysem.demo.demo = partial(polysem.demo.demo, scenes=SCENES, settings=settings)  # type: ignore[assignment]
    main()
