"""Data parallelism over CPU threads: one module on several parts of a batch at once, gradients included."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from polysem import cpu_blocks, dropout
from polysem.masked_ops import is_tracing

_SMALLEST = 16
"""Items in a part: with fewer, the matrix products are too small to be worth a thread."""

Split = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


def run_in_parts(run: Split, module: nn.Module, x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """run(x, mask) with each thread carrying a part of the batch through all operations.

    torch splits every operation over its threads and waits for all at its end; on a busy machine one wait at the very
    end is twice as fast. Dropout has a random stream for each part, so the result depends on the number of threads
    but not on their timing.

    run: uses `module`, treats items one by one (the first axis of its results), draws nothing but dropout.
    """
    parts = 1 if is_tracing() else min(cpu_blocks.count(x.device), len(x) // _SMALLEST)
    if parts < 2 or x.dtype != torch.float32 or torch.is_autocast_enabled(x.device.type):
        return run(x, mask)
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    seeds = [dropout.new_seed() if module.training else 0 for _ in range(parts)]
    return cast(tuple[Tensor, ...], _ByItems.apply(run, seeds, mask, x, *weights))  # type: ignore[no-untyped-call]


class _ByItems(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Split, seeds: list[int], mask: Tensor, x: Tensor, *weights: Tensor) -> Any:
        trained, parts = any(ctx.needs_input_grad), len(seeds)
        inputs = [part.detach().requires_grad_(trained and x.requires_grad) for part in x.tensor_split(parts)]
        outputs: list[tuple[Tensor, ...]] = [()] * parts

        def run_part(number: int, part_mask: Tensor) -> None:
            with torch.set_grad_enabled(trained), dropout.use_seed(seeds[number]):
                outputs[number] = run(inputs[number], part_mask)

        masks = enumerate(mask.tensor_split(parts))
        cpu_blocks.run([partial(run_part, number, part) for number, part in masks], x.device)
        ctx.inputs, ctx.outputs, ctx.weights = inputs, outputs if trained else None, weights
        ctx.set_materialize_grads(False)
        return tuple(torch.cat([part.detach() for part in each]) for each in zip(*outputs, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        inputs, outputs, weights = ctx.inputs, ctx.outputs, ctx.weights
        if outputs is None:
            raise RuntimeError("This gradient was already taken; a second time needs a second forward pass.")
        ctx.outputs = None  # each part's graph is used up, and with it the memory
        sizes = [len(part) for part in inputs]
        of_outputs = [None if gradient is None else gradient.split(sizes) for gradient in gradients]
        results: list[tuple[Tensor | None, ...]] = [()] * len(inputs)

        def differentiate_part(number: int) -> None:
            own = [(out, of[number]) for out, of in zip(outputs[number], of_outputs, strict=True) if of is not None]
            wanted = [*weights, *(part for part in [inputs[number]] if part.requires_grad)]
            outs, of_outs = [out for out, _ in own], [of for _, of in own]
            with torch.enable_grad():
                results[number] = torch.autograd.grad(outs, wanted, of_outs, allow_unused=True)

        cpu_blocks.run([partial(differentiate_part, number) for number in range(len(inputs))], inputs[0].device)
        of_weights = []
        for parts in list(zip(*results, strict=True))[: len(weights)]:
            given = [part for part in parts if part is not None]
            of_weights.append(sum(given[1:], given[0]) if given else None)
        of_x = torch.cat([part[-1] for part in results]) if inputs[0].requires_grad else None  # type: ignore[misc]
        return None, None, None, of_x, *of_weights
