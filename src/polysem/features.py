"""Local features: what every encoder returns and every pooling or set predictor takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polysem._deprecated import renamed_attribute
from polysem.errors import InputError, NonFiniteError, kind
from polysem.masked_ops import is_tracing


@dataclass(frozen=True, eq=False)
class LocalFeatures:
    """The regions, grid cells, patches, words or frames of a batch of items.

    Args:
        values: (B, N, D) floating point.
        mask: (B, N) bool, True where a token is real. Padding is *nothing*: no part reads what stands there.
        summary: (B, G), a global feature of the encoder (the final state of a GRU), where it has one.

    Example:
        >>> import torch
        >>> from polysem.features import LocalFeatures
        >>> features = LocalFeatures.from_lengths(torch.ones(2, 5, 8), lengths=[5, 3])
        >>> len(features), features.dim, features.lengths.tolist()
        (2, 8, [5, 3])
    """

    values: Tensor
    mask: Tensor
    summary: Tensor | None = None

    def __post_init__(self) -> None:
        if is_tracing():  # a graph cannot refuse its input
            return
        values, mask = self.values, self.mask
        require_float(values, "LocalFeatures.values", "(items, tokens, dim)", "Convert arrays with torch.from_numpy().")
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != values.shape[:2]:
            raise InputError(
                f"LocalFeatures.mask must be a bool tensor of shape {tuple(values.shape[:2])} (True = real token), "
                f"got {kind(mask)}. From lengths: LocalFeatures.from_lengths()."
            )
        if mask.device != values.device:
            raise InputError(f"LocalFeatures.values are on {values.device}, the mask on {mask.device}: use .to().")
        if self.summary is not None and (self.summary.ndim != 2 or len(self.summary) != len(values)):
            got = f"got shape {tuple(self.summary.shape)}"
            raise InputError(f"LocalFeatures.summary must be ({len(values)}, dim), one vector per item, {got}.")

    @classmethod
    def from_lengths(cls, values: Tensor, lengths: Tensor | Sequence[int]) -> LocalFeatures:
        """Features whose first `lengths[b]` tokens are real."""
        require_float(values, "LocalFeatures.values", "(items, tokens, dim)", "Convert arrays with torch.from_numpy().")
        lengths = torch.as_tensor(lengths, device=values.device)
        if lengths.shape != values.shape[:1]:
            raise InputError(f"Expected {values.shape[0]} lengths, one per item, got {lengths.numel()}.")
        if lengths.is_floating_point() or bool((lengths < 0).any()) or bool((lengths > values.shape[1]).any()):
            most = f"{values.shape[1]} (the padded length)"
            raise InputError(f"Lengths must be whole numbers from 0 to {most}, got {lengths.tolist()}.")
        return cls(values, torch.arange(values.shape[1], device=values.device) < lengths[:, None])

    @classmethod
    def from_list(cls, items: Sequence[Tensor]) -> LocalFeatures:
        """Pad a list of (n_i, D) tensors with zeros into one batch."""
        if not items:
            raise InputError("LocalFeatures.from_list() got an empty list; give at least one (tokens, dim) tensor.")
        shapes = [tuple(item.shape) if isinstance(item, Tensor) else (kind(item),) for item in items]
        if any(len(shape) != 2 or shape[1] != shapes[0][1] for shape in shapes):
            raise InputError(f"Every item must be a (tokens, dim) tensor with one common dim, got {shapes}.")
        values = torch.nn.utils.rnn.pad_sequence(list(items), batch_first=True)
        return cls.from_lengths(values, [shape[0] for shape in shapes])

    def __len__(self) -> int:
        return self.values.shape[0]

    @property
    def dim(self) -> int:
        return self.values.shape[2]

    @property
    def lengths(self) -> Tensor:
        """(B,) number of real tokens of each item."""
        return self.mask.sum(1)

    def to(self, device: torch.device | str) -> LocalFeatures:
        summary = None if self.summary is None else self.summary.to(device)
        return LocalFeatures(self.values.to(device), self.mask.to(device), summary)

    def zero_padding(self) -> LocalFeatures:
        """The same features with zeros in place of whatever the padding held (NaN included)."""
        if not is_tracing() and bool(self.mask.all()):
            return self
        return LocalFeatures(self.values.masked_fill(~self.mask[..., None], 0.0), self.mask, self.summary)

    zero_padded = renamed_attribute("zero_padded", "zero_padding")

    def check(self, dim: int | None = None) -> None:
        """Raise unless every item has a real token, every real value is finite and the width is `dim`."""
        if is_tracing():
            return
        if dim is not None and dim != self.dim:
            raise InputError(f"This part takes features of width {dim}, got {self.dim}. Rebuild it or project them.")
        if len(self) == 0:
            raise InputError("Got a batch without items; give at least one.")
        empty = ~self.mask.any(1)
        if bool(empty.any()):
            items = empty.nonzero().flatten().tolist()[:10]
            raise InputError(f"Items {items} consist of padding alone: drop them, or check how the mask was made.")
        # One cheap reduction settles the usual case; padding may legitimately hold NaN, so look closer only then.
        if not bool(self.values.detach().sum().isfinite()):
            bad = ~self.values.detach().isfinite().all(-1) & self.mask
            if bool(bad.any()):
                item, token = bad.nonzero()[0].tolist()
                raise NonFiniteError(
                    f"Features hold NaN or infinity in {int(bad.sum())} token(s), first at item {item}, token {token}. "
                    "Check the extraction of that item, or the learning rate if this happens while training."
                )


def require_float(x: object, what: str, axes: str, remedy: str = "") -> None:
    """Raise unless x is a floating-point tensor with as many axes as `axes` names, such as "(items, tokens, dim)"."""
    if not isinstance(x, Tensor) or x.ndim != axes.count(",") + 1 or not x.is_floating_point():
        raise InputError(f"{what} must be a floating-point {axes} tensor, got {kind(x)}. {remedy}".rstrip())


def require_features(features: object, part: object) -> LocalFeatures:
    """The features themselves; an `InputError` that says how to make them, where they are something else."""
    if not isinstance(features, LocalFeatures):
        raise InputError(
            f"{type(part).__name__} takes LocalFeatures, got {kind(features)}. "
            "From a padded tensor: LocalFeatures.from_lengths(values, lengths)."
        )
    return features


GROUPS = 4
WORTHWHILE = 0.75
"""Share of the padded batch that the groups together may have: more, and cutting costs what it saves."""
SMALLEST = 32
"""Items in a group: fewer keep the processor waiting."""

Group = tuple[Tensor, int]
"""The rows of a group, and the tokens its longest item reaches to."""


def group_by_length(mask: Tensor) -> list[Group]:
    """Rows of like length together, where that saves something; otherwise none. mask: (B, N)."""
    items, longest = mask.shape
    if is_tracing() or items < 2 * SMALLEST:
        return []
    count = min(GROUPS, items // SMALLEST)
    reach = (mask * torch.arange(1, longest + 1, device=mask.device)).amax(1)
    order = reach.argsort(stable=True)
    found = [(rows, int(reach[rows[-1]])) for rows in order.tensor_split(count)]
    worthwhile = sum(len(rows) * length for rows, length in found) <= WORTHWHILE * items * longest
    return found if worthwhile else []
