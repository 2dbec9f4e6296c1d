"""One of several processes: writes the gradients of one batch of each case. Run by test_processes.py."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

from polysem import distributed
from polysem.training import backward
from training import labelled
from training.small import assembled, cpu, gradients, tiny
from training.test_backward import doubled


def compute_gradients(recipe: str, data: Path, chunk: int, overrides: list[str]) -> dict[str, torch.Tensor]:
    """Loss, gradients and buffers after one batch, of which this process takes its share."""
    if recipe.startswith("semantic-sharing"):
        model, criterion, loader = labelled.assembled(labelled.tiny(recipe, *overrides), data)
    else:
        model, criterion, _, loader = assembled(tiny(recipe, *overrides), data)
    loader.rank, loader.world_size = distributed.rank(), distributed.world_size()
    model.double().train()
    batch = doubled(next(iter(loader.epoch(0))))
    loss, _ = backward.run_batch(model, criterion, batch, cpu(), chunk=chunk or None)
    towers = [*model.image.parameters(), *model.text.parameters()]
    distributed.reduce_gradients(towers, model.similarity.parameters())
    found = {"loss": loss.total, "images": torch.tensor(len(batch.images)), **gradients(model)}
    return found | {f"buffer/{name}": buffer for name, buffer in model.named_buffers()}


def main(cases: str, data: str, out: str) -> None:
    torch.set_num_threads(1)
    cpu()  # accelerate connects the processes
    found = {name: compute_gradients(recipe, Path(data), *how) for name, (recipe, *how) in json.loads(cases).items()}
    torch.save(found, f"{out}-{distributed.rank()}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # gloo's threads can outlive the interpreter
