"""Options that commands share, and what they stand for: collections and protocols."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option
from typer.core import TyperCommand, TyperGroup, TyperOption

from polysem.errors import ConfigError

if TYPE_CHECKING:
    from polysem.data.collection import Collection
    from polysem.evaluation.protocols import Protocol


def option(help: str, *names: str, default: str = "none", **settings: Any) -> Any:  # noqa: A002 - as typer's
    """An option that may be left out. default: what its help says is taken then."""
    return Option(*names, help=help, show_default=default, **settings)


AsJson = Annotated[bool, Option("--json", help="Print the result as JSON and nothing else.")]
Data = Annotated[str, Option(help="The collection: whatever `polysem data check` can read.")]
Features = Annotated[Path | None, option("Store of image features.")]
TextFeatures = Annotated[Path | None, option("Store of caption features.")]
FolderLabels = Annotated[bool, Option("--folder-labels", help="Names of subfolders are labels.")]
Splits = Annotated[list[str] | None, option("Only this split; repeatable.", default="all")]
ProtocolOptions = Annotated[
    list[str] | None,
    option("An option of the protocol, such as annotations=FILE, k=50 or quirk=NAME; repeatable.", metavar="KEY=VALUE"),
]


def open_data(source: str | Path, folder_labels: bool = False, splits: Sequence[str] | None = None) -> Collection:
    """folder_labels: of a folder of pictures, take the names of its subfolders for labels."""
    from polysem.data import open_collection

    options: dict[str, Any] = {"folder_labels": True} if folder_labels else {}
    collection = open_collection(source, **options)
    return collection.split(*splits) if splits else collection


def find_protocol(name: str, options: list[str] | None) -> Protocol:
    """options: KEY=VALUE."""
    from polysem.evaluation import protocols

    return protocols.find(name).with_options(**parse_pairs("--option", options))


def parse_pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """The KEY=VALUE texts that an option was given."""
    for text in texts or ():
        if "=" not in text:
            raise ConfigError(f"{option} takes KEY=VALUE, got {text!r}.")
    return dict(text.split("=", 1) for text in texts or ())


class _QuickHelp:
    """typer validates the value of a help flag nobody gave (None) with pydantic, and importing that takes as long as
    the rest of a quick command. A default of False needs no validation."""

    def get_help_option(self, ctx: Any) -> TyperOption | None:
        found: TyperOption | None = super().get_help_option(ctx)  # type: ignore[misc]
        if found is not None:
            found.default = False
        return found


class QuickCommand(_QuickHelp, TyperCommand): ...


class QuickGroup(_QuickHelp, TyperGroup): ...
