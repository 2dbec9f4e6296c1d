"""Two processes train as one: the same loss, the same gradients, the same moving averages."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from training.labelled import make_labelled
from training.two_processes import compute_gradients
from waiting import LONG

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
STILL = ("image.encoder.dropout=0.0", "text.encoder.dropout=0.0", "image.sets.dropout=0.0", "text.sets.dropout=0.0")
CASES = {
    "vse-infty": ("vse-infty", 0, ("training.batch=7",)),  # batch norm, uneven shares
    "vse-infty cached": ("vse-infty", 2, ("training.batch=7",)),
    "dive": ("dive", 0, (*STILL, "image.sets.head_dim=8", "text.sets.head_dim=8", "training.batch=5")),
    "dive with auxiliary losses": (
        "dive",
        2,
        (
            *(*STILL, "image.sets.head_dim=8", "text.sets.head_dim=8", "text.sets.k=2", "training.batch=5"),
            "auxiliary=[{on: global, weight: 0.5}, {on: elements, weight: 2}]",
        ),
    ),
    "dive with phrases": (
        "dive",
        2,
        (
            *(*STILL, "image.sets.head_dim=8", "text.sets.head_dim=8", "training.batch=5"),
            *("phrases={weight: 0.5, least: 2, share: 1}", "auxiliary=[{on: residual, weight: 0.5}]"),
        ),
    ),
    "single vectors with phrases": ("vse-infty", 2, ("training.batch=5", "phrases={least: 2, share: 1}")),
    # Masked modelling chooses among the masked regions of its own process: without it.
    "labels": ("semantic-sharing-consistency", 0, ("objective.lambda=0", "training.batch=7", "training.captions=2")),
    "dive-mp learned scale": (
        "dive-mp",
        0,
        (*STILL, "image.sets.head_dim=8", "text.sets.head_dim=8", "similarity.learnable=true"),
    ),
}


def launch(data: Path, out: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, str(HERE / "two_processes.py"), json.dumps(CASES), str(data), str(out)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in running:
        _, errors = process.communicate(timeout=LONG)
        assert process.returncode == 0, errors[-3000:]


@pytest.mark.slow
def test_two_processes_have_the_gradients_of_one(tmp_path):
    data = make_labelled(tmp_path / "data", english=True)
    launch(data, tmp_path / "two")
    both = [torch.load(tmp_path / f"two-{rank}.pt", weights_only=True) for rank in range(2)]
    for case, (recipe, _, overrides) in CASES.items():
        one, two = compute_gradients(recipe, data, 0, overrides), [found[case] for found in both]
        assert int(two[0]["images"]) + int(two[1]["images"]) == int(one["images"]), case
        for share in two:
            assert int(share["images"]) > 0
            assert share.keys() == one.keys()
            for name in one.keys() - {"images"}:
                message = f"{case}, {name}"
                torch.testing.assert_close(
                    share[name], one[name], rtol=1e-7, atol=1e-10, msg=lambda m, n=message: f"{n}: {m}"
                )
