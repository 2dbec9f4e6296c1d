"""Two processes train as one: the same loss, the same gradients, the same moving averages."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from training.labelled import make_labelled
from waiting import LONG

HERE = Path(__file__).parent
STILL = ("image.encoder.dropout=0.0", "text.encoder.dropout=0.0", "image.sets.dropout=0.0", "text.sets.dropout=0.0")
CASES = {
    "vse-infty": ("vse-infty", 0, ("training.batch=7",)),  # batch norm, uneven shares
    "vse-infty cached": ("vse-infty", 2, ("training.batch=7",)),
    "dive": ("dive", 0, (*STILL, "image.sets.head_dim=8", "text.sets.head_dim=8", "training.batch=5")),
    # Guesses choose among the hidden regions of their own process: without them.
    "labels": ("semantic-sharing-consistency", 0, ("objective.lambda=0", "training.batch=7", "training.captions=2")),
    "dive-mp learned scale": (
        "dive-mp",
        0,
        (*STILL, "image.sets.head_dim=8", "text.sets.head_dim=8", "similarity.learnable=true"),
    ),
}


def launch(arguments: list[str], world_size: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, str(HERE / "two_processes.py"), *arguments],
            env={**shared, "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(world_size)}
            if world_size > 1
            else shared,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(world_size)
    ]
    for process in running:
        _, errors = process.communicate(timeout=LONG)
        assert process.returncode == 0, errors[-3000:]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_have_the_gradients_of_one(case, tmp_path):
    recipe, chunk, overrides = CASES[case]
    data = make_labelled(tmp_path / "data")
    launch([recipe, str(data), str(tmp_path / "one"), "0", *overrides], 1)
    launch([recipe, str(data), str(tmp_path / "two"), str(chunk), *overrides], 2)
    one = torch.load(tmp_path / "one-0.pt", weights_only=True)
    both = [torch.load(tmp_path / f"two-{rank}.pt", weights_only=True) for rank in range(2)]
    assert int(both[0]["images"]) + int(both[1]["images"]) == int(one["images"])
    assert int(both[0]["images"]) > 0
    assert int(both[1]["images"]) > 0
    for two in both:
        assert two.keys() == one.keys()
        for name in one.keys() - {"images"}:
            torch.testing.assert_close(two[name], one[name], rtol=1e-7, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")
