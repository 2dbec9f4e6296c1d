"""One module on several parts of a batch at once, a thread for each, gradients included."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from polysem import cpu_blocks, dropout
from polysem.masked_ops import is_tracing

_SMALLEST = 16
"""Items in a part: with fewer, the matrix products are too small to be worth a thread."""

Split = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


def by_items(run: Split, module: nn.Module, x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """run(x, mask), which uses `module` and treats items one by one; its results have them first. (B, N, E), (B, N).

    torch would split every operation over its threads and have them meet at its end; here each thread carries a part of
    the batch through all of them. On a busy machine, where someone is always late to a meeting, that is twice as fast.
    Dropout on each part has a stream of its own, so the result depends on the number of threads, but not on their luck.
    `run` must draw no other random numbers.
    """
    if is_tracing():
        return run(x, mask)
    parts = min(cpu_blocks.count(x.device), len(x) // _SMALLEST)
    if parts < 2 or x.dtype != torch.float32 or torch.is_autocast_enabled(x.device.type):
        return run(x, mask)
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    seeds = [dropout.new_seed() if module.training else 0 for _ in range(parts)]
    results: tuple[Tensor, ...] = _ByItems.apply(run, seeds, mask, x, *weights)  # type: ignore[no-untyped-call]
    return results


class _ByItems(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Split, seeds: list[int], mask: Tensor, x: Tensor, *weights: Tensor) -> Any:
        trained, parts = any(ctx.needs_input_grad), len(seeds)
        inputs = [part.detach().requires_grad_(trained and x.requires_grad) for part in x.tensor_split(parts)]
        outputs: list[tuple[Tensor, ...]] = [()] * parts

        def one(place: int, masked: Tensor) -> None:
            with torch.set_grad_enabled(trained), dropout.use_seed(seeds[place]):
                outputs[place] = run(inputs[place], masked)

        cpu_blocks.run([partial(one, place, part) for place, part in enumerate(mask.tensor_split(parts))], x.device)
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
        given = [None if gradient is None else gradient.split(sizes) for gradient in gradients]
        found: list[tuple[Tensor | None, ...]] = [()] * len(inputs)

        def one(place: int) -> None:
            own = [(out, of[place]) for out, of in zip(outputs[place], given, strict=True) if of is not None]
            asked = [*weights, *(part for part in [inputs[place]] if part.requires_grad)]
            with torch.enable_grad():
                found[place] = torch.autograd.grad(
                    [out for out, _ in own], asked, [of for _, of in own], allow_unused=True
                )

        cpu_blocks.run([partial(one, place) for place in range(len(inputs))], inputs[0].device)
        of_weights = [_sum([part[i] for part in found]) for i in range(len(weights))]
        of_x = torch.cat([part[-1] for part in found]) if inputs[0].requires_grad else None  # type: ignore[misc]
        return None, None, None, of_x, *of_weights


def _sum(parts: list[Tensor | None]) -> Tensor | None:
    total: Tensor | None = None
    for part in parts:
        if part is not None:
            total = part if total is None else total.add_(part)
    return total
