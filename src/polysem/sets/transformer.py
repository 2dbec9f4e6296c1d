from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from polysem.sets.attention import Competition
from polysem.sets.base import registry
from polysem.sets.slots import AggregatingPredictor, Dropout


@registry.register("transformer")
class TransformerPredictor(AggregatingPredictor):
    """The `slots` block with ordinary attention: each slot spreads over the tokens and none has to differ from another.

    DivE's ablation of the competition between slots; never released.
    """

    def __init__(
        self,
        dim: PositiveInt,
        k: PositiveInt = 4,
        input_dim: PositiveInt | None = None,
        iterations: PositiveInt = 4,
        tied: bool = True,
        heads: PositiveInt = 4,
        head_dim: PositiveInt = 512,
        ff_mult: PositiveInt = 4,
        dropout: Dropout = 0.0,
        position: Literal["none", "sine"] = "none",
        add_global: bool = True,
    ) -> None:
        super().__init__(
            dim=dim,
            k=k,
            input_dim=input_dim,
            position=position,
            add_global=add_global,
            iterations=iterations,
            tied=tied,
            heads=heads,
            head_dim=head_dim,
            ff_mult=ff_mult,
            dropout=dropout,
            gru=False,
            learned_slots=True,
            how=Competition("tokens"),
        )
