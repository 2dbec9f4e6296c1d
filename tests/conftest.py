import os
import sys
import tempfile

import pytest
import torch

from polysem.environment.precision import reduced_precision

# Tests start hundreds of processes: each would compile the package anew where the shell forbids bytecode files.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What the user has fetched does not become the model of a test that names none.
os.environ["HF_HUB_CACHE"] = os.path.join(tempfile.gettempdir(), "polysem-tests-without-a-hub-cache")
os.environ.pop("POLYSEM_MODEL", None)

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
