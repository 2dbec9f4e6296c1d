"""`polysem demo` in a process of its own, on a tiny scale: python run_tiny.py ENCODERS ARGUMENT …"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import polysem.demo
from demo.tiny import SCENES, fake_packages, tiny_settings
from polysem.cli import main

if __name__ == "__main__":
    torch.set_num_threads(1)
    fake_packages(pytest.MonkeyPatch())
    settings = tiny_settings(Path(sys.argv.pop(1)))
    polysem.demo.demo = partial(polysem.demo.demo, scenes=SCENES, settings=settings)  # type: ignore[assignment]
    main()
