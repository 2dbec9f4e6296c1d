"""Released checkpoints: read as tensors and plain values without running code, and made into a model of our parts."""

from __future__ import annotations

import argparse
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from polysem.errors import PolysemError, unknown
from polysem.models.build import build
from polysem.models.model import Model
from polysem.registry import Part


class CheckpointError(PolysemError):
    """A file that is no released checkpoint, is damaged, or holds a model that polysem has no counterpart of."""


class CheckpointTensors(dict[str, Tensor]):
    """CheckpointTensors by name. where: the file and the place in it, for messages."""

    def __init__(self, where: str, state: dict[str, Tensor]) -> None:
        super().__init__(state)
        self.where = where

    def sizes(self, name: str, axes: int) -> tuple[int, ...]:
        """The shape of a tensor that must be there and have so many axes: sizes of a model are read from these."""
        if name not in self:
            held = ", ".join(sorted(self)[:6]) or "none"
            raise CheckpointError(
                f"{self.where} holds no tensor {name!r}; it has {len(self)}: {held}{', …' * (len(self) > 6)}. "
                "The file is incomplete, or was not written by the authors' training script: get it again."
            )
        shape = tuple(self[name].shape)
        if len(shape) != axes:
            raise CheckpointError(
                f"{self.where}: the tensor {name!r} has shape {shape}, expected {axes} axes. "
                "This is not the released code's tensor of that name: get the file again."
            )
        return shape

    def under(self, prefix: str) -> CheckpointTensors:
        """The tensors whose names begin so, without that beginning."""
        return CheckpointTensors(
            self.where, {k.removeprefix(prefix): v for k, v in self.items() if k.startswith(prefix)}
        )

    def without(self, *prefixes: str) -> CheckpointTensors:
        return CheckpointTensors(self.where, {k: v for k, v in self.items() if not k.startswith(prefixes)})

    def count(self, pattern: str) -> int:
        """How many of `pattern`0, `pattern`1, … there are, such as layers."""
        n = 0
        while any(name.startswith(f"{pattern}{n}.") for name in self):
            n += 1
        return n


ReleasedBy = Literal["vse-infty", "vse-2ad", "dive", "labelwise"]
SOURCES: tuple[ReleasedBy, ...] = get_args(ReleasedBy)

_LAYOUT = {
    "vse-infty": "a list of two state dicts, image and text",
    "vse-2ad": "one state dict with img_enc.* and txt_enc.*, pooled by *.pool.*",
    "dive": "one state dict with img_enc.* and txt_enc.*, whose sets come from *.spm.*",
    "labelwise": "a list of four state dicts: image, text, transformer and head",
}
_MODULES = {"vse-infty": ("image", "text"), "labelwise": ("image", "text", "transformer", "head")}
_SCORES = ("epoch", "best_rsum", "rsum", "best_score", "best_loss", "Eiters")


@dataclass(frozen=True)
class ReleasedCheckpoint:
    """A released checkpoint, whatever its layout.

    modules: "image" and "text", and for the label-wise model also "transformer" and "head".
    options: the command line of its training. recorded: the scores and counters its authors wrote beside the weights.
    """

    file: str
    modules: Mapping[str, CheckpointTensors]
    options: Mapping[str, Any]
    recorded: Mapping[str, float]

    def require(self, expected: Mapping[str, Any], what: str) -> None:
        """Raise if an option was set to something that changes the model in a way polysem has no counterpart of."""
        for name, value in expected.items():
            given = self.options.get(name, value)
            if given != value:
                raise CheckpointError(
                    f"{self.file} was trained with {name}={given!r}; {what} with {name}={value!r} can be imported. "
                    "There is no counterpart of the other in polysem: train one with `polysem train`."
                )


def read(path: Path, source: str) -> ReleasedCheckpoint:
    """The checkpoint in this file, which must be one of `source`."""
    if source not in SOURCES:
        raise unknown("origin of a checkpoint", source, SOURCES)
    content = _load(path)
    model = content.get("model") if isinstance(content, dict) else None
    found = _recognise(model)
    if found is None:
        keys = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(
            f"{path} is no checkpoint of {', '.join(SOURCES)}: it holds {keys if keys else 'nothing'}. Expected a dict "
            f"whose 'model' is {_LAYOUT[source]}, as the authors' training script writes it."
        )
    if found != source:
        raise CheckpointError(
            f"{path} is not of {source}, whose 'model' is {_LAYOUT[source]}. It looks like {found}: "
            f"'model' is {_LAYOUT[found]}. Run again with --from {found}."
        )
    return ReleasedCheckpoint(path.name, _modules(path.name, model, source), _options(content), _recorded(content))


def _load(path: Path) -> Any:
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder. Give the checkpoint file in it, such as model_best.pth.")
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file. Give the checkpoint the authors released.")
    if path.stat().st_size == 0:
        raise CheckpointError(f"{path} is empty. Download it again.")
    try:
        # Namespace and device hold values and run nothing. Old pickle protocols make torch warn; it reads them.
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace, torch.device]):
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # readers of damaged files raise almost anything
        foreign = re.search(r"GLOBAL ([\w.]+)", str(error))
        if foreign is not None:
            raise CheckpointError(
                f"{path} asks for {foreign[1]}; a checkpoint may hold tensors, numbers, texts and argparse.Namespace "
                "alone. It was refused, and no code from it was run. If you trust its origin, load it there with the "
                "authors' code and save the state dicts and options by themselves."
            ) from None
        # torch's first lines are advice on how to run the file's code.
        said = re.search(r"WeightsUnpickler error: (.+)", str(error)) or re.search(r"(.+)", str(error))
        raise CheckpointError(
            f"{path} cannot be read as a PyTorch checkpoint ({said[1] if said else type(error).__name__:.120}). It is "
            "damaged, incomplete or something else; no code from it was run. Download it again and compare its size."
        ) from None


def _recognise(model: Any) -> ReleasedBy | None:
    if isinstance(model, (list, tuple)) and model and all(_is_state(part) for part in model):
        return {2: "vse-infty", 4: "labelwise"}.get(len(model))  # type: ignore[return-value]
    if _is_state(model) and any(str(name).removeprefix("module.").startswith("img_enc.") for name in model):
        return "dive" if any("_enc.spm." in str(name) for name in model) else "vse-2ad"
    return None


def _is_state(part: Any) -> bool:
    return isinstance(part, dict) and bool(part) and all(isinstance(tensor, Tensor) for tensor in part.values())


def _modules(file: str, model: Any, source: str) -> dict[str, CheckpointTensors]:
    if source in _MODULES:
        return {
            name: _bare(f"{file}, model[{place}] ({name})", part)
            for place, (name, part) in enumerate(zip(_MODULES[source], model, strict=True))
        }
    whole = _bare(file, model)
    for name in whole.without("img_enc.", "txt_enc."):
        raise CheckpointError(f"{file} holds a tensor {name!r}; expected img_enc.* and txt_enc.* alone.")
    sides = {"image": "img_enc.", "text": "txt_enc."}
    return {name: CheckpointTensors(f"{file}, {prefix}*", whole.under(prefix)) for name, prefix in sides.items()}


def _bare(where: str, state: Mapping[Any, Tensor]) -> CheckpointTensors:
    """Without the prefix that DataParallel adds."""
    bare = {str(name).removeprefix("module."): tensor for name, tensor in state.items()}
    for name, tensor in bare.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(
                f"{where}: {name!r} holds NaN or infinity; no embedding can come of it. Get it again."
            )
    return CheckpointTensors(where, bare)


def _options(content: Mapping[str, Any]) -> dict[str, Any]:
    given = content.get("opt", content.get("args"))
    options = vars(given) if isinstance(given, argparse.Namespace) else given
    if not isinstance(options, dict):
        return {}
    return {str(name): value for name, value in options.items() if isinstance(value, (str, int, float))}


def _recorded(content: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: content[name]
        for name in _SCORES
        if isinstance(content.get(name), (int, float)) and math.isfinite(content[name])
    }


Variant = Literal["paper", "official"]


@dataclass(frozen=True)
class ImportOptions:
    """What the file leaves open. variant: whether padding leaks as in the released code. bert_heads: see `towers`."""

    variant: Variant
    bert_heads: int | None = None


@dataclass(frozen=True)
class ImportedTower:
    """A tower to be: its config, and the tensors of its parts by place, such as "encoder" or "sets.pooling".

    official: under the authors' names. own: under ours, for parts that were never theirs, such as BERT.
    dropped: tensors without effect on an embedding, each with the reason.
    """

    config: dict[str, Any]
    official: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    own: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImportPlan:
    dim: int
    image: ImportedTower
    text: ImportedTower
    similarity: dict[str, Any]

    @property
    def dropped(self) -> list[str]:
        return [f"{side}: {what}" for side in ("image", "text") for what in getattr(self, side).dropped]

    def build(self, file: str) -> Model:
        """The model with the checkpoint's weights."""
        try:
            model = build(dim=self.dim, image=self.image.config, text=self.text.config, similarity=self.similarity)
        except PolysemError as error:
            raise CheckpointError(f"{file} describes a model that cannot be built. {error}") from None
        for side, tower in (("image", self.image), ("text", self.text)):
            for place, state in tower.official.items():
                try:
                    cast(Part, model.get_submodule(f"{side}.{place}")).load_official(state)
                except PolysemError as error:
                    raise CheckpointError(f"{file}, {side}.{place}: {error}") from None
            for place, state in tower.own.items():
                try:
                    model.get_submodule(f"{side}.{place}").load_state_dict(dict(state))
                except RuntimeError as error:
                    problem = " ".join(str(error).split())
                    raise CheckpointError(
                        f"{file}, {side}.{place}: {problem:.400} These do not belong together: get the file again."
                    ) from None
        return model.eval()
