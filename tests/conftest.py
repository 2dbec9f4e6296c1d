import os
import sys

import pytest
import torch

from polysem.environment.precision import reduced_precision

# Tests start hundreds of processes: each would compile the package anew where the shell forbids bytecode files.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The tensors of the tests are tiny: a second thread costs more than it brings, above all on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.default_generator.manual_seed(0)  # torch.manual_seed formats the stack for every absent device


@pytest.fixture(scope="session")
def needs_bf16() -> None:
    """For a test that multiplies in bfloat16: skipped where this processor cannot, which would kill the worker."""
    found = reduced_precision("bf16")
    if not found.works:
        pytest.skip(f"bfloat16 on this processor: {found.problem}. {found.remedy}")
