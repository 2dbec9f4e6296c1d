"""The tensors of one module in a released checkpoint, under the names its authors gave them."""

from __future__ import annotations

from torch import Tensor

from polysem.errors import PolysemError


class CheckpointError(PolysemError):
    """A file that is no released checkpoint, is damaged, or holds a model that polysem has no counterpart of."""


class Tensors(dict[str, Tensor]):
    """Tensors by name. where: the file and the place in it, for messages."""

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

    def under(self, prefix: str) -> Tensors:
        """The tensors whose names begin so, without that beginning."""
        return Tensors(self.where, {k.removeprefix(prefix): v for k, v in self.items() if k.startswith(prefix)})

    def without(self, *prefixes: str) -> Tensors:
        return Tensors(self.where, {k: v for k, v in self.items() if not k.startswith(prefixes)})

    def count(self, pattern: str) -> int:
        """How many of `pattern`0, `pattern`1, … there are, such as layers."""
        n = 0
        while any(name.startswith(f"{pattern}{n}.") for name in self):
            n += 1
        return n
