"""Waiting for a state, never for a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

LONG = 600.0
"""Seconds after which a test gives up instead of hanging for ever. No test may depend on how long something takes."""


def wait_until(holds: Callable[[], Any], what: str = "", seconds: float = LONG) -> None:
    """Look again and again until it holds; that it never does is a failure."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"it did not come about: {what}"
        time.sleep(0.01)


def wait_for(event: threading.Event) -> None:
    assert event.wait(LONG), "it did not come about"


def finish(*threads: threading.Thread) -> None:
    """Wait for threads that were started; that one never ends is a failure."""
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()
