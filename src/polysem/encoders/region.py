"""Encoders of precomputed features: regions of images and frames of videos."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from polysem import dropout as dropped
from polysem import masked_ops
from polysem.encoders.base import Encoder, registry
from polysem.errors import unknown
from polysem.features import LocalFeatures

Dropout = Annotated[float, Field(ge=0, lt=1)]
Form = Literal["vse_infty", "dive", "linear"]

# Released code's names and ours.
_OFFICIAL: Mapping[str, Mapping[str, str]] = {
    "vse_infty": {"fc": "fc", "mlp.layers.0": "hidden", "mlp.bns.0": "norm", "mlp.layers.1": "out"},
    "dive": {"fc": "fc", "mlp.fc1": "hidden", "mlp.bn.bn": "norm", "mlp.fc2": "out"},
    "linear": {"fc": "fc"},
}


def xavier_linear(input_dim: int, dim: int) -> nn.Linear:
    """A linear map as every paper of this family starts it: Xavier-uniform, bias 0."""
    linear = nn.Linear(input_dim, dim)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


@registry.register("region")
class Region(Encoder):
    """Precomputed region features, projected: the image tower of VSE∞, VSE+2AD and DivE on bottom-up attention.

    form:
      vse_infty  f = fc(x) + MLP(x), MLP = Linear(input_dim, dim / 2), BatchNorm, ReLU, Linear (VSE∞, VSE+2AD)
      dive       f = dropout(fc(x) + MLP(fc(x))), the MLP on the projected feature, dim -> dim / 2 -> dim
      linear     f = fc(x) (VSE∞ on grid features)

    BatchNorm sees real tokens only, and padding comes out as zeros. variant "official" treats zero-padded rows like any
    other, as the released code does: they count in BatchNorm's training statistics and come out as f(0), which DivE's
    released set predictor then reads. Real tokens are the same in both, outside training.
    """

    kind = "image"
    takes = "features"

    def __init__(
        self,
        input_dim: PositiveInt = 2048,
        dim: PositiveInt = 1024,
        form: Form = "vse_infty",
        dropout: Dropout = 0.0,
        variant: Literal["paper", "official"] = "paper",
        trainable: Literal["none", "all"] = "all",
        lr_scale: float = 1.0,
    ) -> None:
        super().__init__(trainable, lr_scale)
        self.input_dim, self.dim, self.form, self.variant = input_dim, dim, form, variant
        self.fc = xavier_linear(input_dim, dim)
        if form != "linear":
            if dim < 2:
                self.reject_knobs("the residual MLP has dim / 2 hidden units: give dim of at least 2.")
            self.hidden = nn.Linear(input_dim if form == "vse_infty" else dim, dim // 2)
            self.norm = nn.BatchNorm1d(dim // 2)
            self.out = nn.Linear(dim // 2, dim)
        self.dropout = dropped.Dropout(dropout)
        self.set_trainable(trainable)

    def forward(self, features: LocalFeatures) -> LocalFeatures:
        features.check(self.input_dim)
        clean = features.zero_padding()
        if self.variant == "official" or masked_ops.is_tracing() or bool(clean.mask.all()):
            values = self.encode(clean.values.flatten(0, 1)).view(*clean.mask.shape, -1)
            projected = LocalFeatures(values, clean.mask, clean.summary)
            return projected if self.variant == "official" else projected.zero_padding()
        # By number, not by mask: the gradient of a masked copy is ten times as slow.
        real = clean.mask.flatten().nonzero()[:, 0]
        rows = self.encode(clean.values.flatten(0, 1).index_select(0, real))
        values = torch.zeros(clean.mask.numel(), self.dim, dtype=rows.dtype, device=rows.device)
        values = values.index_copy(0, real, rows).unflatten(0, clean.mask.shape)
        return LocalFeatures(values, clean.mask, clean.summary)

    def encode(self, rows: Tensor) -> Tensor:
        """(R, input_dim) -> (R, dim): one row per token."""
        projected: Tensor = self.fc(rows)
        if self.form != "linear":
            hidden = self.hidden(rows if self.form == "vse_infty" else projected)
            projected = projected + self.out(masked_ops.batch_norm(self.norm, hidden).relu())
        result: Tensor = self.dropout(projected)
        return result

    def translate_official(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """VSE∞'s and VSE+2AD's names, or DivE's. Their BatchNorm of the output layer was never used and is dropped."""
        keys = _OFFICIAL[self.form]
        own = {}
        for name, tensor in state.items():
            module, _, leaf = name.rpartition(".")
            if module == "mlp.bns.1" and self.form == "vse_infty":
                continue
            if module not in keys:
                raise unknown(f"tensor of the released {self.form} region encoder", name, [f"{key}.*" for key in keys])
            own[f"{keys[module]}.{leaf}"] = torch.as_tensor(tensor)
        return own


@registry.register("frames")
class Frames(Encoder):
    """Precomputed features of a video's frames, in order, projected to `dim`; without `dim` they pass as they are."""

    kind = "video"
    takes = "features"

    def __init__(self, input_dim: PositiveInt = 2048, dim: PositiveInt | None = None, lr_scale: float = 1.0) -> None:
        super().__init__(lr_scale=lr_scale)
        self.input_dim, self.dim = input_dim, dim or input_dim
        self.projection = Region(input_dim, dim, form="linear") if dim is not None else None

    def forward(self, features: LocalFeatures) -> LocalFeatures:
        if self.projection is not None:
            return self.projection(features)
        features.check(self.input_dim)
        return features.zero_padding()
