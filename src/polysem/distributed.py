"""Data-parallel training: each process embeds its share of a batch, all see all negatives, and gradients are summed.

Every process knows the whole plan of a batch, so only embeddings and gradients travel. Each computes the whole loss
from all embeddings, which makes the gradient of its own share complete; the sum over processes is then the gradient
that a single process would have. (DistributedDataParallel's hooks support neither a cached batch nor parts that are
frozen for an epoch; one sum of all gradients after the backward pass does.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


def gather(own: Tensor, sizes: list[int]) -> Tensor:
    """The rows of all processes in order, with a gradient for the own ones. sizes: rows of each process."""
    if world_size() == 1:
        return own
    longest = max(sizes)
    padded = torch.zeros(longest, *own.shape[1:], dtype=own.dtype, device=own.device)
    padded[: len(own)] = own.detach()
    gathered = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(gathered, padded)
    rows = [part[:size] for part, size in zip(gathered, sizes, strict=True)]
    rows[rank()] = own
    return torch.cat(rows)


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, own: Tensor) -> Tensor:
        summed = own.clone()
        dist.all_reduce(summed)
        return summed

    # The sum is in the loss of every process: each gets the gradients of all.
    backward = forward  # type: ignore[assignment]


def all_reduce(own: Tensor) -> Tensor:
    """The sum over all processes, with a gradient that crosses them too."""
    return own if world_size() == 1 else cast(Tensor, _AllReduce.apply(own))  # type: ignore[no-untyped-call]


def reduce_gradients(towers: Iterable[nn.Parameter], scorer: Iterable[nn.Parameter]) -> None:
    """Sum the towers' gradients over all processes. Those of the similarity are whole everywhere: average them."""
    if world_size() == 1:
        return
    for parameters, shares in ((list(towers), 1), (list(scorer), world_size())):
        training = [parameter for parameter in parameters if parameter.requires_grad]
        if not training:
            continue
        for parameter in training:  # one process may have no use for a weight that another has
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([parameter.grad.flatten() for parameter in training if parameter.grad is not None])
        dist.all_reduce(flat)
        flat /= shares
        for parameter, part in zip(training, flat.split([p.numel() for p in training]), strict=True):
            parameter.grad = part.view_as(parameter).clone()


def barrier() -> None:
    """Wait until every process is here."""
    if world_size() > 1:
        dist.barrier()


def broadcast(value: float) -> float:
    """The first process's value, in all processes."""
    if world_size() == 1:
        return value
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    shared = torch.tensor([value], dtype=torch.float64, device=device)
    dist.broadcast(shared, 0)
    return float(shared)
