"""Released checkpoints, read as tensors and plain values without running code."""

from __future__ import annotations

import argparse
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from polysem.errors import PolysemError, unknown


class ImportedCheckpointError(PolysemError):
    """A file that is not a released checkpoint, is damaged, or holds a model that polysem has no counterpart of."""


class CheckpointTensors(dict[str, Tensor]):
    """Tensors by name. where: the file and the place in it, for messages."""

    def __init__(self, where: str, state: Mapping[str, Tensor]) -> None:
        super().__init__(state)
        self.where = where

    def sizes(self, name: str, axes: int) -> tuple[int, ...]:
        """The shape of a tensor that must be there and have so many axes: sizes of a model are read from these."""
        if name not in self:
            held = ", ".join(sorted(self)[:6]) or "none"
            raise ImportedCheckpointError(
                f"{self.where} holds no tensor {name!r}; it has {len(self)}: {held}{', …' * (len(self) > 6)}. "
                "The file is incomplete, or was not written by the authors' training script: get it again."
            )
        shape = tuple(self[name].shape)
        if len(shape) != axes:
            raise ImportedCheckpointError(f"{self.where}: the tensor {name!r} has shape {shape}, expected {axes} axes.")
        return shape

    def under(self, prefix: str) -> CheckpointTensors:
        """The tensors whose names begin so, without that beginning."""
        names = [name for name in self if name.startswith(prefix)]
        return CheckpointTensors(self.where, {name.removeprefix(prefix): self[name] for name in names})

    def without(self, *prefixes: str) -> CheckpointTensors:
        return CheckpointTensors(self.where, {k: v for k, v in self.items() if not k.startswith(prefixes)})

    def refuse_others(self, *prefixes: str) -> None:
        """Raise for a tensor whose name begins with none of these."""
        for name in self.without(*prefixes):
            expected = ", ".join(f"{prefix}*" for prefix in prefixes)
            raise ImportedCheckpointError(f"{self.where} holds a tensor {name!r}; expected {expected} alone.")

    def count(self, pattern: str) -> int:
        """How many of `pattern`0, `pattern`1, … there are, such as layers."""
        n = 0
        while any(name.startswith(f"{pattern}{n}.") for name in self):
            n += 1
        return n


ReleasedBy = Literal["vse-infty", "vse-2ad", "dive", "labelwise"]
SOURCES: tuple[ReleasedBy, ...] = get_args(ReleasedBy)
Variant = Literal["paper", "official"]

_LAYOUT = {
    "vse-infty": "a list of two state dicts, image and text",
    "vse-2ad": "one state dict with img_enc.* and txt_enc.*, pooled by *.pool.*",
    "dive": "one state dict with img_enc.* and txt_enc.*, whose sets come from *.spm.*",
    "labelwise": "a list of four state dicts: image, text, transformer and head",
}
_MODULES = ("image", "text", "transformer", "head")
_SCORES = ("epoch", "best_rsum", "rsum", "best_score", "best_loss", "Eiters")


@dataclass(frozen=True)
class ReleasedCheckpoint:
    """A released checkpoint, whatever its layout, and what is to be made of it.

    modules: "image" and "text", and for the label-wise model also "transformer" and "head".
    options: the command line of its training. recorded: the scores and counters its authors wrote beside the weights.
    variant, bert_heads: see `import_checkpoint`.
    """

    file: str
    modules: Mapping[str, CheckpointTensors]
    options: Mapping[str, Any]
    recorded: Mapping[str, float]
    variant: Variant = "paper"
    bert_heads: int | None = None

    def require(self, expected: Mapping[str, Any], what: str) -> None:
        """Raise if an option was set to something that changes the model in a way polysem has no counterpart of."""
        for name, value in expected.items():
            given = self.options.get(name, value)
            if given != value:
                raise ImportedCheckpointError(
                    f"{self.file} was trained with {name}={given!r}; {what} with {name}={value!r} can be imported. "
                    "There is no counterpart of the other in polysem: train one with `polysem train`."
                )

    def option(self, name: str) -> Any:
        """An option that must be there."""
        if name not in self.options:
            raise ImportedCheckpointError(
                f"{self.file} does not say with which {name} it was trained, and its tensors do not show it. "
                "Expected the options under 'args', as the authors' training script writes them."
            )
        return self.options[name]

    def choose(self, option: str, ours: Mapping[str, str]) -> str:
        """Our name of an option's value."""
        given = self.option(option)
        if given not in ours:
            raise ImportedCheckpointError(
                f"{self.file} was trained with {option}={given!r}; models with {' or '.join(sorted(ours))} can be "
                "imported. There is no counterpart of the other in polysem."
            )
        return ours[given]

    def check_width(self, image: int, text: int) -> None:
        """Raise unless both sides have the same width."""
        if image != text:
            raise ImportedCheckpointError(f"{self.file}: the image side has width {image}, the text side {text}.")


def read(path: Path, source: str, variant: Variant = "paper", bert_heads: int | None = None) -> ReleasedCheckpoint:
    """The checkpoint in this file, which must be one of `source`."""
    if source not in SOURCES:
        raise unknown("origin of a checkpoint", source, SOURCES)
    content = _load(path)
    model = content.get("model") if isinstance(content, dict) else None
    found = _recognise(model)
    if found is None or model is None:
        keys = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise ImportedCheckpointError(
            f"{path} is not a checkpoint of {', '.join(SOURCES)}: it holds {keys or 'nothing'}. Expected a dict whose "
            f"'model' is {_LAYOUT[source]}, as the authors' training script writes it."
        )
    if found != source:
        raise ImportedCheckpointError(
            f"{path} is not of {source}, whose 'model' is {_LAYOUT[source]}. It looks like {found}: "
            f"'model' is {_LAYOUT[found]}. Run again with --from {found}."
        )
    file = path.name
    if isinstance(model, dict):
        whole = _strip_prefix(file, model)
        whole.refuse_others("img_enc.", "txt_enc.")
        sides = {"image": "img_enc.", "text": "txt_enc."}
        modules = {name: CheckpointTensors(f"{file}, {prefix}*", whole.under(prefix)) for name, prefix in sides.items()}
    else:
        named = zip(_MODULES, model, strict=False)
        modules = {name: _strip_prefix(f"{file}, model[{n}] ({name})", part) for n, (name, part) in enumerate(named)}
    given = content.get("opt", content.get("args"))
    options = vars(given) if isinstance(given, argparse.Namespace) else given
    options = options if isinstance(options, dict) else {}
    plain = {str(name): value for name, value in options.items() if isinstance(value, (str, int, float))}
    scores = {name: content[name] for name in _SCORES if isinstance(content.get(name), (int, float))}
    recorded = {name: value for name, value in scores.items() if math.isfinite(value)}
    return ReleasedCheckpoint(file, modules, plain, recorded, variant, bert_heads)


def _load(path: Path) -> Any:
    if path.is_dir():
        raise ImportedCheckpointError(f"{path} is a folder. Give the checkpoint file in it, such as model_best.pth.")
    if not path.is_file():
        raise ImportedCheckpointError(f"{path}: no such file. Give the checkpoint the authors released.")
    if path.stat().st_size == 0:
        raise ImportedCheckpointError(f"{path} is empty. Download it again.")
    try:
        # Namespace and device hold values and run nothing. Old pickle protocols make torch warn; it reads them.
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace, torch.device]):
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # readers of damaged files raise almost anything
        foreign = re.search(r"GLOBAL ([\w.]+)", str(error))
        if foreign is not None:
            raise ImportedCheckpointError(
                f"{path} asks for {foreign[1]}; a checkpoint may hold tensors, numbers, texts and argparse.Namespace "
                "alone. It was refused, and no code from it was run. If you trust its origin, load it there with the "
                "authors' code and save the state dicts and options by themselves."
            ) from None
        # torch's first lines are advice on how to run the file's code.
        said = re.search(r"WeightsUnpickler error: (.+)", str(error)) or re.search(r"(.+)", str(error))
        raise ImportedCheckpointError(
            f"{path} cannot be read as a PyTorch checkpoint ({said[1] if said else type(error).__name__:.120}). It is "
            "damaged, incomplete or something else; no code from it was run. Download it again and compare its size."
        ) from None


def _recognise(model: Any) -> ReleasedBy | None:
    parts = model if isinstance(model, (list, tuple)) else [model]
    if not parts or not all(
        isinstance(p, dict) and p and all(isinstance(t, Tensor) for t in p.values()) for p in parts
    ):
        return None
    if parts is model:
        return {2: "vse-infty", 4: "labelwise"}.get(len(model))  # type: ignore[return-value]
    if not any(str(name).removeprefix("module.").startswith("img_enc.") for name in model):
        return None
    return "dive" if any("_enc.spm." in str(name) for name in model) else "vse-2ad"


def _strip_prefix(where: str, state: Mapping[Any, Tensor]) -> CheckpointTensors:
    """Tensors that are finite, without the prefix that DataParallel adds to their names."""
    tensors = CheckpointTensors(where, {str(name).removeprefix("module."): tensor for name, tensor in state.items()})
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ImportedCheckpointError(f"{where}: {name!r} holds NaN or infinity. Get the file again.")
    return tensors
