"""What the tests share: reference cases, random batches and a list of every part."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polysem import LocalFeatures

FIXTURES = Path(__file__).parent / "fixtures"


@dataclass(frozen=True)
class Case:
    """One run of an author's released code: weights, inputs, outputs and gradients by name."""

    weight: dict[str, Tensor]
    input: dict[str, Tensor]
    output: dict[str, Tensor]
    grad: dict[str, Tensor]
    meta: dict[str, Any]

    @property
    def features(self) -> LocalFeatures:
        return LocalFeatures.from_lengths(self.input["features"].clone().requires_grad_(), self.input["lengths"])


def load_case(name: str) -> Case:
    groups: dict[str, dict[str, Tensor]] = {"weight": {}, "input": {}, "output": {}, "grad": {}}
    with np.load(FIXTURES / f"{name}.npz", allow_pickle=False) as archive:
        meta = json.loads(str(archive["meta"]))
        for key in archive.files:
            if key != "meta":
                group, rest = key.split("/", 1)
                groups[group][rest] = torch.from_numpy(np.array(archive[key]))
    return Case(**groups, meta=meta)


def cases(prefix: str) -> list[str]:
    found = sorted(path.stem for path in FIXTURES.glob(f"{prefix}*.npz"))
    if not found:
        raise FileNotFoundError(f"no reference case starts with {prefix!r}")
    return found


def assert_close(given: Tensor, expected: Tensor, atol: float, rtol: float = 0.0) -> None:
    torch.testing.assert_close(given, expected, atol=atol, rtol=rtol, check_dtype=False)


def assert_gradient(given: Tensor | None, expected: Tensor) -> None:
    """The tolerance that the reference cases state for gradients."""
    assert given is not None
    assert_close(given, expected, atol=1e-5, rtol=1e-4)


def batch(dim: int = 12, lengths: tuple[int, ...] = (9, 4, 1, 6), seed: int = 0, dtype: Any = None) -> LocalFeatures:
    """Random features; the padding holds large numbers that nobody may read."""
    generator = torch.Generator().manual_seed(seed)
    padded = max(lengths)
    values = torch.randn(len(lengths), padded, dim, generator=generator, dtype=dtype)
    features = LocalFeatures.from_lengths(values, lengths)
    return LocalFeatures(values.masked_fill(~features.mask[..., None], 1e6), features.mask)


def alone(features: LocalFeatures, item: int) -> LocalFeatures:
    """One item by itself, without padding."""
    real = features.values[item][features.mask[item]]
    return LocalFeatures(real[None], torch.ones(1, len(real), dtype=torch.bool))


def unit(*shape: int, seed: int = 0, dtype: Any = None) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator, dtype=dtype), dim=-1)


def shaken(part: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Move every parameter off its initial value, so that zero- and one-initialised ones do something."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator).to(parameter))
    return part.eval()
