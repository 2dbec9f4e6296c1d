"""What a model can leave out on disk: weights that an installed package has anyway, and half of every other number."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polysem import encoders
from polysem.encoders import weight_lookup
from polysem.errors import InputError

if TYPE_CHECKING:
    from polysem.models.model import Model


def rounded(model: Model, without: Set[str]) -> Model:
    """A copy whose weights, without those of these names, are numbers that float16 can hold."""
    copied = copy.deepcopy(model)
    for name, tensor in copied.state_dict().items():
        if name not in without and tensor.is_floating_point():
            half = tensor.half()
            if not torch.isfinite(half).all():
                raise InputError(
                    f"{name} holds numbers beyond float16 (up to {tensor.abs().max():.3g}, it ends at 65504). "
                    "Save the model as it is."
                )
            tensor.copy_(half)
    return copied


def borrowed(model: Model) -> dict[str, set[str]]:
    """By side, the tensors of an encoder that are still those of its weights package."""
    found = {}
    for side, tower in (("image", model.image), ("text", model.text)):
        config = tower.encoder.config
        if not all(name in weight_lookup.PACKAGED for name in named(config)):
            continue
        own, source = tower.encoder.state_dict(), encoders.build(**pretrained(config)).state_dict()
        found[side] = {
            f"{side}.encoder.{name}" for name in own if name in source and torch.equal(own[name], source[name])
        }
    return {side: names for side, names in found.items() if names}


def halved(state: Mapping[str, Tensor], without: Set[str]) -> dict[str, Tensor]:
    """The tensors to store, of a model that was `rounded`."""
    kept = {name: tensor for name, tensor in state.items() if name not in without}
    return {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in kept.items()}


def borrowing(config: Mapping[str, Any], sides: Iterable[str]) -> dict[str, Any]:
    """The config of a model whose encoders on these sides begin with their package's weights."""
    lent = {side: {**config[side], "encoder": pretrained(config[side]["encoder"])} for side in sides}
    return {**config, **lent}


def named(encoder: Mapping[str, Any]) -> list[str]:
    """The models that an encoder begins with; "" for one that begins with none."""
    return encoder.get("models") or [encoder.get("model", "")]


def pretrained(encoder: Mapping[str, Any]) -> dict[str, Any]:
    return {**encoder, "pretrained": True}
