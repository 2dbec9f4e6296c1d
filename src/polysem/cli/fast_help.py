"""Commands whose `--help` costs nothing until it is asked for.

typer validates the value of a help flag nobody gave (None) with pydantic, and importing that takes as long as
the rest of a quick command. A default of False needs no validation.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup, TyperOption


def _without_validation(option: TyperOption | None) -> TyperOption | None:
    if option is not None:
        option.default = False
    return option


class QuickCommand(TyperCommand):
    def get_help_option(self, ctx: Any) -> TyperOption | None:
        return _without_validation(super().get_help_option(ctx))


class QuickGroup(TyperGroup):
    def get_help_option(self, ctx: Any) -> TyperOption | None:
        return _without_validation(super().get_help_option(ctx))
