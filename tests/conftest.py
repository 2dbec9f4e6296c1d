import pytest
import torch

# The tensors of the tests are tiny: a second thread costs more than it brings, above all on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
