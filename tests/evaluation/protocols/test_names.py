"""A protocol's name belongs to one protocol."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from polysem.errors import ConfigError
from polysem.evaluation import protocols
from polysem.evaluation.protocols import Protocol


def test_a_second_protocol_of_the_same_name_is_refused() -> None:
    @dataclass(frozen=True)
    class Mine(Protocol):
        name: str = "pairs"
        about: str = "mine"

        def compute(self, task: Any) -> Any:
            raise NotImplementedError

    known: Any = protocols.find("pairs")
    with pytest.raises(ConfigError, match=r"Mine.* cannot be the protocol 'pairs': .*PairsProtocol.* Choose another"):
        protocols.register(Mine)
    with pytest.raises(ConfigError, match="cannot be the protocol 'pairs'"):
        protocols.register(replace(known, about="another of the same class"))
    protocols.register(replace(known))  # the same again, as of a reloaded module
    assert protocols.find("pairs") == known
