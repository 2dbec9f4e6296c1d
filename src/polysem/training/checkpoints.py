"""Checkpoints: everything a run needs to go on, written whole or not at all, without any pickle.

Random numbers, the learning rate and the order of the data are functions of the step, so they are not in it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from polysem.errors import PolysemError
from polysem.models import Model
from polysem.models.folder import unshared

WEIGHTS, STATE = "state.safetensors", "state.json"


class CheckpointError(PolysemError):
    """A checkpoint that cannot be written or read."""


@dataclass(frozen=True)
class Checkpoint:
    """tensors: weights under "model/", the optimiser's memory under "optimiser/". state: all else, JSON-able."""

    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]


class Checkpoints:
    """The folder of a run's checkpoints: the last one, and the best by validation."""

    def __init__(self, run: Path) -> None:
        self.folder = run / "checkpoints"

    def save(self, kind: str, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint of this kind ("last" or "best"): the old one stays until the new one is complete."""
        step = int(checkpoint.state["step"])
        aside, final = self.folder / f".{kind}.partial", self.folder / f"{kind}-{step:08d}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            save_file(unshared(checkpoint.tensors), aside / WEIGHTS)
            (aside / STATE).write_text(json.dumps(checkpoint.state), encoding="utf-8")
            for path in (aside / WEIGHTS, aside / STATE, aside):
                _to_disk(path)
            while final.exists():  # of the same step: the old one goes when the new one is there
                final = final.with_name(final.name + "+")
            os.rename(aside, final)
            _to_disk(self.folder)
        except OSError as error:
            raise CheckpointError(
                f"Cannot write a checkpoint to {self.folder}: {error.strerror or error}. The one before it is whole; "
                "make room and run the same command again."
            ) from None
        for older in self._all(kind):
            if older != final:
                shutil.rmtree(older, ignore_errors=True)

    def load(self, kind: str) -> Checkpoint | None:
        """The newest complete checkpoint of this kind, or None."""
        for path in reversed(self._all(kind)):
            try:
                return Checkpoint(load_file(path / WEIGHTS), json.loads((path / STATE).read_text(encoding="utf-8")))
            except (OSError, ValueError, SafetensorError) as error:
                raise CheckpointError(
                    f"The checkpoint {path} cannot be read ({error}). Delete it to go on from an older one, if there "
                    "is one, or train into another folder."
                ) from None
        return None

    def _all(self, kind: str) -> list[Path]:
        return sorted(self.folder.glob(f"{kind}-*")) if self.folder.is_dir() else []


def collect(
    model: Model,
    optimiser: torch.optim.Optimizer | None,
    resting: frozenset[str],
    beside: nn.Module | None = None,
) -> dict[str, Tensor]:
    """The tensors of a checkpoint. resting: places whose weights never change, such as "image.encoder". beside: what
    trains with the model and is no part of it."""
    tensors = {f"model/{name}": tensor for name, tensor in _changing(model, resting).items()}
    if beside is not None:
        tensors |= {f"beside/{name}": tensor for name, tensor in beside.state_dict().items()}
    if optimiser is not None:
        names = {id(parameter): name for name, parameter in _parameters(model, beside).items()}
        for parameter, memory in optimiser.state.items():
            for slot, value in memory.items():
                tensors[f"optimiser/{names[id(parameter)]}/{slot}"] = torch.as_tensor(value)
    return tensors


def restore(
    model: Model,
    optimiser: torch.optim.Optimizer | None,
    tensors: Mapping[str, Tensor],
    resting: frozenset[str],
    beside: nn.Module | None = None,
) -> None:
    """Put the tensors of a checkpoint back where `collect` took them from."""
    expected = unshared(_changing(model, resting)).keys()
    found = {name.removeprefix("model/"): tensor for name, tensor in tensors.items() if name.startswith("model/")}
    if expected != found.keys():
        odd = sorted(expected ^ found.keys())
        raise CheckpointError(
            f"The checkpoint does not fit the model: {len(odd)} tensors differ, e.g. {odd[0]!r}. "
            "Was it written by another version? Train into another folder."
        )
    model.load_state_dict(found, strict=False)
    if beside is not None:
        beside.load_state_dict({name: tensors[f"beside/{name}"] for name in beside.state_dict()})
    if optimiser is None:
        return
    parameters = _parameters(model, beside)
    optimiser.state.clear()
    for name, tensor in tensors.items():
        if name.startswith("optimiser/"):
            owner, _, slot = name.removeprefix("optimiser/").rpartition("/")
            parameter = parameters[owner]
            # All of it lies beside its weight: a fused optimiser counts its steps there too.
            optimiser.state[parameter][slot] = tensor.to(parameter.device, copy=True)


def _parameters(model: Model, beside: nn.Module | None) -> dict[str, nn.Parameter]:
    """By name; of what is beside the model, after "beside."."""
    own = dict(model.named_parameters())
    return own if beside is None else {**own, **{f"beside.{name}": p for name, p in beside.named_parameters()}}


def _changing(model: Model, resting: frozenset[str]) -> dict[str, Tensor]:
    state: dict[str, Tensor] = model.state_dict()
    return {
        name: tensor for name, tensor in state.items() if not name.startswith(tuple(f"{place}." for place in resting))
    }


def _to_disk(path: Path) -> None:
    """Past the operating system's buffers: a power cut must not leave a name without content."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
