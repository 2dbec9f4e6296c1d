import os
import threading

import pytest
import torch

from polysem import cpu_blocks, similarity
from support import unit
from waiting import wait_until


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", similarity.names())
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_scores_do_not_depend_on_the_number_of_threads(name, mode, two_threads):
    part = similarity.build(name)
    k, size = (1, 1) if name == "cosine" else (3, 2)
    a, b = unit(30, k, 6), unit(40, size, 6, seed=1)
    with mode():
        many = part.scores(a, b, budget_mb=1e-2)
    torch.set_num_threads(1)
    with mode():
        one = part.scores(a, b, budget_mb=1e-2)
    torch.testing.assert_close(many, one, atol=1e-6, rtol=0)


def test_the_number_of_threads_is_left_as_it_was(two_threads):
    done = []
    cpu_blocks.run([lambda: done.append(torch.get_num_threads())] * 8, torch.device("cpu"))
    assert done == [1] * 8
    assert torch.get_num_threads() == 2


def test_an_error_in_a_block_reaches_the_caller(two_threads):
    def fail():
        raise RuntimeError("block 3")

    with pytest.raises(RuntimeError, match="block 3"):
        cpu_blocks.run([lambda: None, lambda: None, fail], torch.device("cpu"))
    assert torch.get_num_threads() == 2


def test_blocks_run_without_gradients(two_threads):
    modes = []
    with torch.no_grad():
        cpu_blocks.run([lambda: modes.append(torch.is_grad_enabled())] * 4, torch.device("cpu"))
    assert modes == [False] * 4


def test_threads_born_while_others_score_keep_all_cores(two_threads):
    part, a, b = similarity.build("smooth_chamfer"), unit(60, 3, 6), unit(80, 2, 6, seed=1)
    part.scores(a, b, budget_mb=1e-2)
    counts = []
    born = [threading.Thread(target=lambda: counts.append(torch.get_num_threads())) for _ in range(10)]
    for thread in born:
        thread.start()
        part.scores(a, b, budget_mb=1e-2)
    for thread in born:
        thread.join()
    assert counts == [2] * 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_makes_threads_of_its_own(two_threads):
    cpu_blocks.run([lambda: None] * 4, torch.device("cpu"))
    child = os.fork()
    if child == 0:
        done = []
        cpu_blocks.run([lambda: done.append(1)] * 4, torch.device("cpu"))
        os._exit(0 if len(done) == 4 else 1)
    ended: list[int] = []

    def done():
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            ended.append(status)
        return found

    try:
        wait_until(done, "the child waits for threads that it does not have")
    finally:
        if not ended:
            os.kill(child, 9)
            os.waitpid(child, 0)
    assert ended == [0]
