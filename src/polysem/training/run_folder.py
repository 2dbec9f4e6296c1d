"""The folder of a run: its lock, run.json and recipe.yaml, the metrics log, and checkpoints to resume from.

Checkpoints are written whole or not at all, without any pickle. Random numbers, the learning rate and the order of the
data are functions of the step, so they are not in a checkpoint.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, TypeGuard

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from polysem import atomic_write
from polysem.errors import InputError, PolysemError
from polysem.models import Model
from polysem.models.folder import drop_aliases

RUN, RECIPE, METRICS = "run.json", "recipe.yaml", "metrics.jsonl"
_WEIGHTS, _STATE = "state.safetensors", "state.json"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; nothing where there is none, or none that can be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_run(run: Path) -> dict[str, Any] | None:
    """run.json, or None where no run has begun."""
    try:
        content = json.loads((run / RUN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{run / RUN} cannot be read ({error}). Train into another folder.") from None
    return content if isinstance(content, dict) else None


def write_run(run: Path, content: Mapping[str, Any]) -> None:
    """Replace run.json, and recipe.yaml beside it for people."""
    run.mkdir(parents=True, exist_ok=True)
    recipe = yaml.safe_dump(dict(content["recipe"]), sort_keys=False, allow_unicode=True)
    # run.json first: a folder that has it is known as a run's, whatever else is missing.
    atomic_write.write_text(run / RUN, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    atomic_write.write_text(run / RECIPE, recipe)


def check_run(run: Path, recipe: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any] | None:
    """The run.json that an earlier call of the same command left in this folder, or None.

    Raises:
        InputError: the folder holds something else, or a run of another command.
    """
    earlier = read_run(run) if run.is_dir() else None
    check_folder(run, "run", earlier is not None)
    if earlier is None:
        return None
    different = list(list_differences(earlier.get("recipe", {}), json.loads(json.dumps(recipe))))
    if earlier.get("data", {}).get("digest") != data["digest"]:
        different.append("the data: other items, captions or splits")
    if different:
        raise InputError(
            f"{run} holds a run of another command: {'; '.join(different[:5])}. "
            "Run the same command to resume it, or give another --out."
        )
    return earlier


def check_folder(out: Path, what: str, begun: bool) -> None:
    """Raise unless `out` is free for a run or sweep (`what`), or holds one that has begun."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file. Give a folder.")
    others = sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) if out.is_dir() else []
    if others and not begun:
        listed = ", ".join(others[:3])
        raise InputError(f"--out {out} is not empty and holds no {what} ({listed} …). Give another folder.")


def list_differences(then: Any, now: Any, path: str = "") -> Iterator[str]:
    """`key: old then, new now` for every key that is not the same in both."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in sorted({*then, *now}):
            yield from list_differences(then.get(key), now.get(key), f"{path}.{key}" if path else key)
    elif then != now:
        yield f"{path}: {then!r} then, {now!r} now"


def lock_folder(run: Path) -> AbstractContextManager[None]:
    """Keep a second run out of the folder. The lock goes with the process, also when that is killed."""
    run.mkdir(parents=True, exist_ok=True)
    busy = InputError(f"Another process is training into {run}. Wait for it, or give another --out.")
    return atomic_write.hold_lock(run / ".lock", busy)


class MetricsLog:
    """metrics.jsonl, one line per event. Without `enabled` (a process that is not the first) it does nothing."""

    def __init__(self, run: Path, enabled: bool = True) -> None:
        self.path, self.enabled = run / METRICS, enabled

    def truncate(self, step: int) -> None:
        """Drop the lines after `step`: a run that resumes there writes them again."""
        if self.enabled:
            lines = [json.dumps(line) + "\n" for line in read_metrics(self.path) if line.get("step", 0) <= step]
            atomic_write.write_text(self.path, "".join(lines))

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a line."""
        if self.enabled:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(replace_non_finite(record)) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every whole line; one that was cut by a kill is left out."""
    if not path.is_file():
        return []
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            records.append(json.loads(line))
    return [record for record in records if isinstance(record, dict)]


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of a record is a number, which a truth value is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def flatten_numbers(values: Mapping[str, Any], separator: str, above: str = "") -> dict[str, float]:
    """The numbers of nested tables by their path, such as "i2t.r1"."""
    flat: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten_numbers(value, separator, f"{above}{name}{separator}")
        elif is_number(value):
            flat[f"{above}{name}"] = value
    return flat


def replace_non_finite(value: Any) -> Any:
    """JSON knows no NaN: such a number becomes null."""
    if isinstance(value, Mapping):
        return {key: replace_non_finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_non_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class CheckpointError(PolysemError):
    """A checkpoint that cannot be written or read."""


class Checkpoints:
    """The folder of a run's checkpoints: the last one, and the best by validation.

    Each has tensors, the weights under "model/" and the optimiser's state under "optimiser/", and a JSON-able state.
    """

    def __init__(self, run: Path) -> None:
        self.folder = run / "checkpoints"

    def save(self, kind: str, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Replace the checkpoint of this kind ("last" or "best"): the old one stays until the new one is complete."""
        partial, final = self.folder / f".{kind}.partial", self.folder / f"{kind}-{state['step']:08d}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            save_file(drop_aliases(tensors), partial / _WEIGHTS)
            (partial / _STATE).write_text(json.dumps(state), encoding="utf-8")
            for path in (partial / _WEIGHTS, partial / _STATE, partial):
                atomic_write.sync(path)
            while final.exists():  # of the same step: the old one goes when the new one is there
                final = final.with_name(final.name + "+")
            os.rename(partial, final)
            atomic_write.sync_folder(self.folder)
        except OSError as error:
            raise CheckpointError(
                f"Cannot write a checkpoint to {self.folder}: {error.strerror or error}. The one before it is whole; "
                "make room and run the same command again."
            ) from None
        for older in list(self.folder.glob(f"{kind}-*")):
            if older != final:
                shutil.rmtree(older, ignore_errors=True)

    def load(self, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and state of the newest complete checkpoint of this kind, or None."""
        path = max(self.folder.glob(f"{kind}-*"), default=None)
        if path is None:
            return None
        try:
            return load_file(path / _WEIGHTS), json.loads((path / _STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError, SafetensorError) as error:
            remedy = "Delete it to resume from an older one, if there is one, or train into another folder."
            raise CheckpointError(f"The checkpoint {path} cannot be read ({error}). {remedy}") from None


def collect_tensors(
    model: Model, optimiser: torch.optim.Optimizer | None, frozen: frozenset[str], heads: nn.Module | None = None
) -> dict[str, Tensor]:
    """The tensors of a checkpoint, without those of `frozen` parts, such as "image.encoder". heads: of masked
    modelling, which train beside the model."""
    tensors = {f"model/{name}": tensor for name, tensor in _trained_state(model, frozen).items()}
    if heads is not None:
        tensors |= {f"beside/{name}": tensor for name, tensor in heads.state_dict().items()}
    if optimiser is not None:
        names = {id(parameter): name for name, parameter in _parameters(model, heads).items()}
        for parameter, slots in optimiser.state.items():
            for slot, value in slots.items():
                tensors[f"optimiser/{names[id(parameter)]}/{slot}"] = torch.as_tensor(value)
    return tensors


def restore_tensors(
    model: Model,
    optimiser: torch.optim.Optimizer | None,
    tensors: Mapping[str, Tensor],
    frozen: frozenset[str],
    heads: nn.Module | None = None,
) -> None:
    """Put the tensors of a checkpoint back where `collect_tensors` took them from."""
    expected = drop_aliases(_trained_state(model, frozen)).keys()
    state = {name.removeprefix("model/"): tensor for name, tensor in tensors.items() if name.startswith("model/")}
    if expected != state.keys():
        odd = sorted(expected ^ state.keys())
        what = f"{len(odd)} tensors differ, e.g. {odd[0]!r}. Was it written by another version?"
        raise CheckpointError(f"The checkpoint does not fit the model: {what} Train into another folder.")
    model.load_state_dict(state, strict=False)
    if heads is not None:
        heads.load_state_dict({name: tensors[f"beside/{name}"] for name in heads.state_dict()})
    if optimiser is None:
        return
    parameters = _parameters(model, heads)
    optimiser.state.clear()
    for name, tensor in tensors.items():
        if name.startswith("optimiser/"):
            owner, _, slot = name.removeprefix("optimiser/").rpartition("/")
            parameter = parameters[owner]
            # On the device of its weight: a fused optimiser counts its steps there too.
            optimiser.state[parameter][slot] = tensor.to(parameter.device, copy=True)


def _parameters(model: Model, heads: nn.Module | None) -> dict[str, nn.Parameter]:
    """By name; those of the heads after "beside.", as checkpoints have them."""
    own = dict(model.named_parameters())
    return own if heads is None else {**own, **{f"beside.{name}": p for name, p in heads.named_parameters()}}


def _trained_state(model: Model, frozen: frozenset[str]) -> dict[str, Tensor]:
    prefixes = tuple(f"{part}." for part in frozen)
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(prefixes)}
