"""One of several processes: takes the gradients of one batch and writes them down. Run by test_processes.py."""

from __future__ import annotations

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


def main(recipe: str, data: str, out: str, chunk: str, *overrides: str) -> None:
    torch.set_num_threads(1)
    accelerator = cpu()
    if recipe.startswith("semantic-sharing"):
        model, criterion, feeder = labelled.assembled(labelled.tiny(recipe, *overrides), Path(data))
    else:
        model, criterion, _, feeder = assembled(tiny(recipe, *overrides), Path(data))
    feeder.rank, feeder.world_size = distributed.rank(), distributed.world_size()
    model.double().train()
    batch = doubled(next(iter(feeder.epoch(0))))
    outcome = backward.run(model, criterion, batch, accelerator, chunk=int(chunk) or None)
    distributed.reduce_gradients([*model.image.parameters(), *model.text.parameters()], model.similarity.parameters())
    found = {"loss": outcome.loss.total, "images": torch.tensor(len(batch.images)), **gradients(model)}
    found |= {f"buffer/{name}": buffer for name, buffer in model.named_buffers()}
    torch.save(found, f"{out}-{distributed.rank()}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # gloo's threads can outlive the interpreter
