"""A digest of what an encoder computes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


def sha256(knobs: Mapping[str, Any], state: Mapping[str, Tensor], further: Iterable[bytes] = ()) -> str:
    """Hex digest of JSON-able knobs, named tensors and further bytes, each in an order that does not vary."""
    digest = hashlib.sha256(json.dumps(knobs, sort_keys=True, ensure_ascii=True).encode())
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        # Names and shapes too: the same bytes in another place are another network.
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        raw: Any = tensor.reshape(-1).view(torch.uint8).numpy()
        digest.update(raw)
    for part in further:
        digest.update(b"\n" + hashlib.sha256(part).digest())
    return digest.hexdigest()
