"""Base class of encoders: raw input in, local features out; what of it trains, how fast, and what identifies it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from polysem.encoders.backbones import find_stages
from polysem.features import LocalFeatures
from polysem.registry import Part, Registry
from polysem.weights import WeightsEntry

registry: Registry[Encoder] = Registry("encoder")

Kind = Literal["image", "text", "video"]
Takes = Literal["pixels", "tokens", "features"]
Trainable = Literal["none", "all"] | PositiveInt
"""Which of an encoder's body trains: nothing, everything, or its last n stages (layers) and what follows them."""


class Encoder(Part):
    """Maps pixels, tokens or precomputed features to `LocalFeatures` of width `dim`.

    The *body* is what was pretrained, or else the whole encoder. Freezing, stages and the learning-rate scale are about
    the body; a projection after it is the head, which always trains.
    """

    __call__: Callable[..., LocalFeatures]
    kind: ClassVar[Kind]
    takes: ClassVar[Takes]
    makes_summary: ClassVar[bool] = False
    """Whether it returns a global feature of each item beside the local ones."""
    tiles_image: ClassVar[bool] = False
    """Whether its tokens are the cells of a square grid over what it sees of an image, after a class token if any."""
    learns_vocabulary: ClassVar[bool] = False
    """Whether its words are counted in the training captions: it is built for a `vocab_size`."""
    dim: int

    without_effect: ClassVar[frozenset[str]] = frozenset({"model", "pretrained", "trainable", "lr_scale", "dropout"})
    """Knobs that do not change what a given set of weights computes: the fingerprint leaves them out."""

    def __init__(self, trainable: Trainable = "all", lr_scale: float = 1.0) -> None:
        super().__init__()
        self._trainable: Trainable = trainable
        self.lr_scale = lr_scale

    @property
    def tokens_per_item(self) -> int | None:
        """How many local features it makes of an input; None where the input decides."""
        return None

    @property
    def body(self) -> nn.Module:
        """The network `backbone`, where the encoder has one."""
        return cast(nn.Module, getattr(self, "backbone", self))

    def stages(self) -> list[nn.Module]:
        """The body's blocks from input to output: what `set_trainable(n)` counts."""
        return [] if self.body is self else find_stages(self.body)

    def freeze(self) -> Self:
        """Train nothing of the body. A projection after it goes on training."""
        return self.set_trainable("none")

    def set_trainable(self, trainable: Trainable) -> Self:
        """Train "none" of the body, "all" of it, or its last n stages and everything that follows them."""
        learning = list(self.body.parameters()) if trainable == "all" else []
        if trainable not in ("none", "all"):
            stages = len(self.stages())
            if not 1 <= int(trainable) <= stages:
                known = f"1 to {stages}" if stages else "no number, as it has no stages"
                self.reject_knobs(f"trainable={trainable}: give 'none', 'all' or {known}.")
            learning = self.last_stages(int(trainable))
        self.body.requires_grad_(False)
        for parameter in learning:
            parameter.requires_grad_(True)
        self._trainable = trainable
        return self.train(self.training)

    def last_stages(self, n: int) -> list[nn.Parameter]:
        """The body's parameters in its last n stages and in all that follows them."""
        return parameters_from(self.body, self.stages()[-n])

    def train(self, mode: bool = True) -> Self:
        """Training mode, except for a frozen body: it stays as it will be used, without dropout or moving averages."""
        if self._trainable == "none" and self.body is self:
            return super().train(False)
        super().train(mode)
        if self._trainable == "none":
            self.body.eval()
        return self

    def parameter_groups(self, lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Optimiser groups: the body at `lr * lr_scale`, the head at `lr`.

        Frozen parameters are included, so that an optimiser outlives `set_trainable()`: it skips what has no gradient.
        """
        body = list(self.body.parameters())
        held = {id(parameter) for parameter in body}
        head = [parameter for parameter in self.parameters() if id(parameter) not in held]
        groups: list[dict[str, Any]] = [
            {"name": "body", "params": body, "lr": lr * self.lr_scale, "weight_decay": weight_decay},
            {"name": "head", "params": head, "lr": lr, "weight_decay": weight_decay},
        ]
        return [group for group in groups if group["params"]]

    def fingerprint(self) -> str:
        """sha256 of all that decides the features of an input: knobs, preprocessing and weights.

        The same in every process and after saving and loading; another as soon as one weight changes. A frozen backbone
        of the catalogue counts by its answer to the probe picture: its files differ from source to source.
        """
        knobs, state, entry = self.deciding_knobs(), self.state_dict(), self.find_catalogue_weights()
        if entry is not None:
            knobs = {**knobs, "weights": {"name": entry.name, "probe": entry.probe}}
            state = {name: tensor for name, tensor in state.items() if not name.startswith("backbone.")}
        return hash_state(knobs, state, self.preprocessing_bytes())

    def find_catalogue_weights(self) -> WeightsEntry | None:
        """The catalogue's entry of the frozen backbone, where that is known by its answer to the probe picture."""
        return None

    def deciding_knobs(self) -> Mapping[str, Any]:
        """Knobs that change what a given set of weights computes."""
        return {name: value for name, value in self.original_knobs().items() if name not in self.without_effect}

    def preprocessing_bytes(self) -> Iterable[bytes]:
        """What prepares the input and is neither knob nor weight: a tokenizer, a vocabulary."""
        return ()

    def save_preprocessing(self, folder: Path) -> None:
        """Write what config and weights do not hold (a tokenizer, say) into the folder of a saved model."""

    def load_preprocessing(self, folder: Path) -> None:
        """Read what `save_preprocessing` wrote."""


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode within the block, afterwards the mode as before."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


def parameters_from(body: nn.Module, stage: nn.Module) -> list[nn.Parameter]:
    """The parameters of a stage of the body and of all that follows it."""
    # Modules register what they hold in the order in which it is used, so all that follows lies further on.
    parameters, first = list(body.parameters()), next(iter(stage.parameters()))
    return parameters[next(place for place, parameter in enumerate(parameters) if parameter is first) :]


def hash_state(knobs: Mapping[str, Any], state: Mapping[str, Tensor], further: Iterable[bytes] = ()) -> str:
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
