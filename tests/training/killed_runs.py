"""A run that dies between two steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from polysem.training.loop import TrainingLoop


class KilledError(Exception):
    """Stands for a kill: raised between two steps, caught by nobody in the loop."""


@contextmanager
def killed_after(step: int) -> Iterator[None]:
    """What trains within the block dies after so many steps."""
    take_step = TrainingLoop.take_step

    def dying(self, batches, epoch):
        if self.step == step:
            raise KilledError
        take_step(self, batches, epoch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingLoop, "take_step", dying)
        with pytest.raises(KilledError):
            yield
