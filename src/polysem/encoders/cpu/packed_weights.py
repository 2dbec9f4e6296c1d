"""Inference of frozen vision transformers on a CPU with packed weights, a sixth faster than torch's own modules.

torch gives the weights of a linear layer to the matrix product as they lie in memory. oneDNN can take them in the order
in which the processor wants them, made once, and applies GELU or adds the residual before it writes a result. A network
gets a *twin* for inference: a copy of its modules that shares all tensors but those weights. The network itself, which
is saved, exported, trained and copied, knows nothing of it.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polysem.masked_ops import is_tracing

_BLOCKS = {
    "Dinov2Layer": ("norm1", "norm2"),
    "Dinov2WithRegistersLayer": ("norm1", "norm2"),
    "ViTLayer": ("layernorm_before", "layernorm_after"),
}
"""transformers' classes of blocks that `PackedBlock` takes the place of, and the names of their two norms."""
_TOLERANCE = 1e-4
"""Largest difference of a packed module from the one it stands for, relative to the largest value: what the order of
sums changes stays below a tenth of it; a processor that sums in bfloat16 is far above."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

Stamp = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Packed:
    """The twin of a network whose tensors had this stamp; None where there can be none."""

    stamp: Stamp
    twin: nn.Module | None


_twins: WeakKeyDictionary[nn.Module, _Packed] = WeakKeyDictionary()
_lock = threading.Lock()
_plain = ContextVar("plain", default=False)


@contextmanager
def plain_networks() -> Iterator[None]:
    """Within the block this thread runs networks themselves, for those who put something into their modules."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def run(network: nn.Module, pixels: Tensor, **arguments: Any) -> Any:
    """What `network(pixels, **arguments)` gives, by the network's packed twin where that can take its place."""
    twin = find_twin(network) if can_run(pixels) else None
    return (network if twin is None else twin)(pixels, **arguments)


def can_run(pixels: Tensor) -> bool:
    """Whether these pixels may go to a twin: they are float32 on a CPU, and nobody differentiates or traces."""
    plain = pixels.device.type == "cpu" and pixels.dtype == torch.float32 and bool(torch.backends.mkldnn.enabled)
    learns = pixels.requires_grad and torch.is_grad_enabled()
    observed = learns or torch.is_autocast_enabled("cpu") or is_tracing() or torch.compiler.is_compiling()
    return plain and not observed and not _plain.get()


def find_twin(network: nn.Module) -> nn.Module | None:
    """The packed twin of a network, made when first asked for and again when a weight has changed.

    None if there can be none: the network learns or has hooks, there is nothing to pack, its weights are not float32 on
    a CPU, torch has no oneDNN, or the results differ.
    """
    stamp = _make_stamp(network)
    if stamp is None:
        return None
    packed = _twins.get(network)
    if packed is None or packed.stamp != stamp:
        with _lock:
            packed = _twins.get(network)
            if packed is None or packed.stamp != stamp:
                _twins.pop(network, None)  # there is never more than one
                packed = _twins[network] = _Packed(stamp, _make_twin(network))
    return packed.twin


def _make_stamp(network: nn.Module) -> Stamp | None:
    """Where each tensor of a network is and how often it was changed; None if the network is not one to pack.

    One walk of our own: modules(), parameters() and buffers() take six times as long, for every batch.
    """
    # Without gradients but outside of inference mode, a network that learns may be its own teacher at every step.
    may_learn = torch.is_inference_mode_enabled()
    stamp: list[tuple[int, int]] = []
    waiting: list[nn.Module | None] = [network]
    while waiting:
        module = waiting.pop()
        if module is None:
            continue
        if module.training or any(getattr(module, hooks) for hooks in _HOOKS):
            return None
        waiting.extend(module._modules.values())
        for tensor in chain(module._parameters.values(), module._buffers.values()):
            if tensor is None:
                continue
            if tensor.is_inference() or (tensor.requires_grad and not may_learn):
                return None  # a tensor made in inference mode does not say when it is changed
            stamp.append((tensor.data_ptr(), tensor._version))
    return tuple(stamp)


def _make_twin(network: nn.Module) -> nn.Module | None:
    tensors = [*network.parameters(), *network.buffers()]
    if any(t.device.type != "cpu" or (t.is_floating_point() and t.dtype != torch.float32) for t in tensors):
        return None
    try:
        # Not in inference mode: what copying makes anew would differ from what the network has.
        with torch.inference_mode(False), torch.no_grad():
            twin = copy.deepcopy(network, {id(tensor): tensor for tensor in tensors})
            return twin if _pack_children(twin) else None
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):  # torch without these operations
        return None


def _pack_children(parent: nn.Module) -> int:
    """Put packed modules in the place of linear layers and known blocks; how many. Raises if one is not equal."""
    count = 0
    for name, child in parent.named_children():
        packed = _pack(child)
        if packed is None:
            count += _pack_children(child)
            continue
        if not _agree(child, packed):
            raise RuntimeError(f"Packed, {type(child).__name__} {name!r} gives another result.")
        setattr(parent, name, packed)
        count += 1
    return count


def _pack(module: nn.Module) -> PackedLinear | PackedBlock | None:
    if type(module) is nn.Linear:
        return PackedLinear(module.weight, module.bias)
    if type(module).__name__ in _BLOCKS and isinstance(getattr(module.mlp, "fc1", None), nn.Linear):
        return PackedBlock(module)
    return None


def _agree(module: nn.Module, packed: PackedLinear | PackedBlock) -> bool:
    """Whether both make the same of two rows of five random tokens."""
    tokens = torch.randn(2, 5, packed.width, generator=torch.Generator().manual_seed(0))
    expected, result = module(tokens), packed(tokens)
    return bool((result - expected).abs().max() <= _TOLERANCE * expected.abs().max().clamp_min(1.0))


class PackedLinear(nn.Module):
    """A linear layer with packed weights.

    weight: (outputs, inputs), bias: (outputs) or None.
    scale: (outputs) of a layer scale that follows; it becomes part of both.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, scale: Tensor | None = None) -> None:
        super().__init__()
        self.width = weight.shape[1]
        if scale is not None:
            weight, bias = weight * scale[:, None], None if bias is None else bias * scale
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())
        self.offset = None if bias is None else bias.detach()

    def forward(self, x: Tensor, activation: str = "none") -> Tensor:
        """(..., inputs) -> (..., outputs). activation: "none" or "gelu"."""
        operation = torch.ops.mkldnn._linear_pointwise
        result: Tensor = operation(x.contiguous(), self.packed, self.offset, activation, [], "none")
        return result

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """The residual plus what the layer makes of x."""
        operation = torch.ops.mkldnn._linear_pointwise.binary
        result: Tensor = operation(x.contiguous(), residual, self.packed, self.offset, "add")
        return result


class PackedBlock(nn.Module):
    """A block of a vision transformer, x + attention(norm(x)) and then x + mlp(norm(x)), with packed weights.

    Queries, keys and values are one product, a layer scale is part of the weights, and the residual is added by the
    product it belongs to.
    """

    def __init__(self, block: Any) -> None:
        super().__init__()
        attention, mlp = block.attention, block.mlp
        self.norms = nn.ModuleList(getattr(block, name) for name in _BLOCKS[type(block).__name__])
        scales = [getattr(getattr(block, f"layer_scale{number}", None), "lambda1", None) for number in (1, 2)]
        three = attention.q_proj, attention.k_proj, attention.v_proj
        biases = [layer.bias for layer in three]
        bias = None if any(bias is None for bias in biases) else torch.cat(biases)
        self.queries_keys_values = PackedLinear(torch.cat([layer.weight for layer in three]), bias)
        self.out = PackedLinear(attention.o_proj.weight, attention.o_proj.bias, scales[0])
        self.first = PackedLinear(mlp.fc1.weight, mlp.fc1.bias)
        self.second = PackedLinear(mlp.fc2.weight, mlp.fc2.bias, scales[1])
        self.activation = mlp.activation_fn
        self.fused = _is_gelu(self.activation)
        self.width, self.head_width, self.scaling = self.first.width, attention.head_dim, attention.scaling

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Tensor:
        items, tokens, _width = x.shape
        joined = self.queries_keys_values(self.norms[0](x)).view(items, tokens, 3, -1, self.head_width)
        queries, keys, values = joined.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(queries, keys, values, attn_mask=attention_mask, scale=self.scaling)
        x = self.out.add_to(x, seen.transpose(1, 2).reshape(items, tokens, -1))
        normed = self.norms[1](x)
        hidden = self.first(normed, "gelu") if self.fused else self.activation(self.first(normed))
        return self.second.add_to(x, hidden)


def _is_gelu(activation: Any) -> bool:
    """Whether it is GELU by the error function, not one of its approximations."""
    if type(activation) is nn.GELU:
        return activation.approximate == "none"
    return type(activation).__name__ == "GELUActivation" and activation.act is F.gelu
