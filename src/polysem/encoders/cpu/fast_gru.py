"""A bidirectional GRU over texts of many lengths, several times as fast to train on a CPU as torch's.

torch adds to the gradient of the recurrent weights (12 MB of it for 1,024 units) at every word, and splits each of its
small operations over all threads. Here those gradients are one matrix product at the end, only real words are computed,
and each direction runs on a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from polysem import cpu_blocks

_WORTH_TWO_THREADS = 1 << 16
"""States to compute: with fewer, two threads mostly wait for each other to let go of Python."""


class Packing:
    """Where the M real words of a batch of texts stand in time order: the first words of all, the second words, ….
    Texts come longest first within each step, so that those still running are always the first rows.

    order: (B,) texts from long to short. sizes: how many texts have a word at each step. reverse: (M,) the row that
    holds a row's word when every text is read from its end; its own inverse. last: (B,) the row of each text's last
    step, in the caller's order.
    """

    def __init__(self, lengths: Tensor) -> None:
        self.order = lengths.argsort(descending=True, stable=True)
        sizes = (lengths[:, None] > torch.arange(int(lengths.max()))).sum(0)
        self.sizes: list[int] = sizes.tolist()
        starts = sizes.cumsum(0) - sizes
        self._step = torch.arange(len(sizes)).repeat_interleave(sizes)
        self._text = torch.arange(len(self._step)) - starts[self._step]  # which of `order` a row belongs to
        mirrored = lengths[self.order][self._text] - 1 - self._step
        self.reverse = starts[mirrored] + self._text
        self.last = starts[lengths - 1] + self.order.argsort()

    def cells(self, padded: int) -> Tensor:
        """(M,) where each row stands in the flattened (B, padded) batch."""
        return self.order[self._text] * padded + self._step


def run(gru: nn.GRU, rows: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
    """(M, input) words in the packing's order -> states (M, hidden) in that order and final states (B, hidden) in the
    caller's, each the mean of both directions. The gradient cannot be differentiated again."""
    weights = (*_weights(gru, ""), *_weights(gru, "_reverse"))
    states: tuple[Tensor, Tensor] = _BothDirections.apply(rows, packing, *weights)  # type: ignore[no-untyped-call]
    return states


def run_padded(gru: nn.GRU, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """For a traced graph, of operations that every runtime has: (B, N, input), (B,) -> states (B, N, hidden) and final
    states (B, hidden). Each item is reversed within its own length, so that the way back does not begin in padding."""

    def read(x: Tensor, way: str) -> Tensor:
        start = x.new_zeros(1, x.shape[0], gru.hidden_size)
        # has_biases, num_layers, dropout, train, bidirectional, batch_first
        return torch.gru(x, start, _weights(gru, way), True, 1, 0.0, False, False, True)[0]

    step = torch.arange(x.shape[1], device=x.device)
    reverse = torch.where(step < lengths[:, None], lengths[:, None] - 1 - step, step)[..., None]
    forward = read(x, "")
    backward = read(x.gather(1, reverse.expand(-1, -1, x.shape[2])), "_reverse")
    backward = backward.gather(1, reverse.expand(-1, -1, backward.shape[2]))
    last = forward.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, forward.shape[2])).squeeze(1)
    return (forward + backward) / 2, (last + backward[:, 0]) / 2


def _weights(gru: nn.GRU, way: str) -> list[Tensor]:
    return [getattr(gru, f"{kind}_{part}_l0{way}") for kind in ("weight", "bias") for part in ("ih", "hh")]


def can_run(gru: nn.GRU, rows: Tensor) -> bool:
    """Whether `run` can take the place of the torch module here."""
    plain = rows.device.type == "cpu" and rows.dtype == gru.weight_hh_l0.dtype == torch.float32
    return plain and not torch.is_autocast_enabled("cpu")


class _BothDirections(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, packing: Packing, *weights: Tensor) -> Any:
        ways = [
            _Direction(rows, packing.sizes, *weights[:4]),
            _Direction(rows.index_select(0, packing.reverse), packing.sizes, *weights[4:]),
        ]
        _run_tasks([way.read for way in ways], ways[0])
        states, last = ways[1].states.index_select(0, packing.reverse), ways[1].states.index_select(0, packing.last)
        states.add_(ways[0].states).div_(2)
        last.add_(ways[0].states.index_select(0, packing.last)).div_(2)
        ctx.set_materialize_grads(False)
        ctx.packing, ctx.ways = packing, ways if any(ctx.needs_input_grad) else None
        ctx.save_for_backward(rows, *weights)
        return states, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_states: Tensor | None, of_last: Tensor | None) -> Any:
        packing, ways, _ = ctx.packing, ctx.ways, ctx.saved_tensors  # which notices a weight that was changed since
        half = None if of_states is None else of_states / 2
        end = None if of_last is None else of_last.index_select(0, packing.order) / 2
        given = [half, None if half is None else half.index_select(0, packing.reverse)]
        found: list[tuple[Tensor, ...]] = [(), ()]

        def one(way: int) -> None:
            found[way] = ways[way].gradients(given[way], end)

        _run_tasks([partial(one, 0), partial(one, 1)], ways[0])
        of_rows = found[0][0] + found[1][0].index_select(0, packing.reverse)
        return of_rows, None, *found[0][1:], *found[1][1:]


def _run_tasks(tasks: list[Callable[[], None]], way: _Direction) -> None:
    def run_in_turn() -> None:
        for task in tasks:
            task()

    # Little work too goes to a worker: torch's own threads take longer to meet than such a matrix product takes.
    small = len(way.x) * way.hidden < _WORTH_TWO_THREADS
    cpu_blocks.run([run_in_turn, lambda: None] if small else tasks, way.x.device)


class _Direction:
    """One direction: r, z = sigmoid(W x + U h), n = tanh(W x + r * (U h + b)), h' = n + z (h - n)."""

    def __init__(self, x: Tensor, sizes: list[int], w_x: Tensor, w_h: Tensor, b_x: Tensor, b_h: Tensor) -> None:
        self.x, self.sizes = x.detach(), sizes
        self.w_x, self.w_h, self.b_x, self.b_h = (weight.detach() for weight in (w_x, w_h, b_x, b_h))
        self.hidden = w_h.shape[1]

    def read(self) -> None:
        size, hidden = self.sizes[0], self.hidden
        # The gates r, z, n of every row, made in place of what they read of x; and U h + b, before r takes its share.
        bias = self.b_x.clone()
        bias[: 2 * hidden] += self.b_h[: 2 * hidden]
        self.gates = torch.addmm(bias, self.x, self.w_x.t())
        self.recurrent = torch.empty(len(self.x), hidden)
        self.states = torch.empty(len(self.x), hidden)
        own, product = self.b_h[2 * hidden :], torch.empty(size, 3 * hidden)
        start, before = 0, None
        for size in self.sizes:
            rows = slice(start, start + size)
            both, n = self.gates[rows].split([2 * hidden, hidden], dim=1)
            z = both[:, hidden:]
            if before is None:
                self.recurrent[rows] = own
            else:
                torch.mm(before[:size], self.w_h.t(), out=product[:size])
                both += product[:size, : 2 * hidden]
                torch.add(product[:size, 2 * hidden :], own, out=self.recurrent[rows])
            both.sigmoid_()
            n.addcmul_(both[:, :hidden], self.recurrent[rows]).tanh_()
            if before is None:
                torch.addcmul(n, n, z, value=-1, out=self.states[rows])
            else:
                torch.lerp(n, before[:size], z, out=self.states[rows])
            start, before = start + size, self.states[rows]

    def gradients(self, of_states: Tensor | None, of_last: Tensor | None) -> tuple[Tensor, ...]:
        """The gradients of x, the weights and the biases, given those of the states (M, hidden) and of the last."""
        hidden = self.hidden
        # The gates' gradients side by side: n as x sees it, r, z, n as h sees it.
        columns = torch.empty(len(self.x), 4 * hidden)
        carried = torch.zeros(self.sizes[0], hidden) if of_last is None else of_last.clone()
        first, second = (torch.empty(self.sizes[0], hidden) for _ in range(2))
        starts = [0, *torch.tensor(self.sizes).cumsum(0).tolist()]
        for step in reversed(range(len(self.sizes))):
            size, start = self.sizes[step], starts[step]
            rows = slice(start, start + size)
            r, z, n = self.gates[rows].split(hidden, dim=1)
            to_x, to_r, to_z, to_h = columns[rows].split(hidden, dim=1)
            grad, one, two = carried[:size], first[:size], second[:size]
            if of_states is not None:
                grad += of_states[rows]
            # n: dn = grad (1 - z) (1 - n^2)
            torch.addcmul(grad, grad, z, value=-1, out=one)
            torch.mul(n, n, out=two)
            torch.addcmul(one, one, two, value=-1, out=to_x)
            torch.mul(to_x, r, out=to_h)
            # r: dr = dn (U h + b) r (1 - r) = dh (U h + b) (1 - r)
            torch.mul(to_h, self.recurrent[rows], out=one)
            torch.addcmul(one, one, r, value=-1, out=to_r)
            # z: dz = grad (h - n) z (1 - z), and the rest of the old state's gradient, grad z
            grad *= z
            if step:
                torch.sub(self.states[starts[step - 1] : starts[step - 1] + size], n, out=one)
                one *= grad
            else:
                torch.mul(grad, n, out=one).neg_()
            torch.addcmul(one, one, z, value=-1, out=to_z)
            if step:
                grad.addmm_(columns[rows, hidden:], self.w_h)
        as_x, as_h = columns[:, : 3 * hidden], columns[:, hidden:]
        w_x = self.w_x.roll(hidden, 0)
        # The states that each row but those of the first step started from.
        before = torch.cat(
            [self.states[:0], *(self.states[s : s + n] for s, n in zip(starts, self.sizes[1:], strict=False))]
        )
        of_h = as_h[self.sizes[0] :].t() @ before if len(self.sizes) > 1 else torch.zeros_like(self.w_h)
        sums = columns.sum(0)
        return (
            as_x @ w_x,
            (as_x.t() @ self.x).roll(-hidden, 0),
            of_h,
            sums[: 3 * hidden].roll(-hidden),
            sums[hidden:].clone(),
        )
