"""Dropout whose random numbers come fast, and on every core.

torch draws them one after the other on one core, a tenth of a training step of DivE. Here blocks of values each have a
generator of their own, so that all cores draw at once, and the same numbers however many there are.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from polysem import cpu_blocks

Rate = Annotated[float, Field(ge=0, lt=1)]
_BLOCK = 1 << 17
_LEVELS = 1 << 16
_thread = threading.local()


class Dropout(nn.Dropout):
    """torch's, with other draws. They follow from torch's random state, and with it are reproducible.

    On the CPU the rate is rounded to a 65,536th; what stays is scaled accordingly.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0 or x.device.type != "cpu" or x.dtype != torch.float32:
            return super().forward(x)
        return cast(Tensor, _Drop.apply(x, self.p, new_seed()))  # type: ignore[no-untyped-call]


def new_seed() -> int:
    """From the stream of this thread, where `use_seed` gave it one, else from torch's random state."""
    stream = getattr(_thread, "stream", None)
    return int(torch.randint(1 << 62, ()) if stream is None else stream.integers(1 << 62))


@contextmanager
def use_seed(seed: int) -> Iterator[None]:
    """Within the block, dropout on this thread draws from `seed`: what threads draw must not depend on their order."""
    outer = getattr(_thread, "stream", None)
    _thread.stream = np.random.Generator(np.random.SFC64(seed))
    try:
        yield
    finally:
        _thread.stream = outer


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, seed: int) -> Tensor:
        limit = round(rate * _LEVELS)
        values = x.contiguous()
        keep, ctx.scale = torch.empty(values.shape, dtype=torch.bool), _LEVELS / (_LEVELS - limit)

        def draw(number: int, kept: Tensor) -> None:
            draws = np.random.SFC64([seed, number]).random_raw(-(-len(kept) // 4)).view(np.uint16)[: len(kept)]
            np.greater_equal(draws, limit, out=kept.numpy())

        result = _scale_kept(values, keep, ctx.scale, draw)
        ctx.save_for_backward(keep)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (keep,) = ctx.saved_tensors
        return _scale_kept(gradient.contiguous(), keep, ctx.scale), None, None


def _scale_kept(values: Tensor, keep: Tensor, scale: float, draw: Any = None) -> Tensor:
    """scale * values where keep, else 0. draw: fills a numbered block of `keep` first."""
    result = torch.empty_like(values)
    flat = [tensor.view(-1) for tensor in (values, keep, result)]

    def fill(numbers: range) -> None:
        for number in numbers:
            inputs, kept, outputs = (tensor[number * _BLOCK : (number + 1) * _BLOCK] for tensor in flat)
            if draw is not None:
                draw(number, kept)
            torch.mul(inputs, kept, out=outputs).mul_(scale)

    count = -(-values.numel() // _BLOCK)
    share = -(-count // cpu_blocks.count(values.device)) or 1
    parts = [range(start, min(start + share, count)) for start in range(0, count, share)]
    cpu_blocks.run([partial(fill, part) for part in parts], values.device)
    return result
