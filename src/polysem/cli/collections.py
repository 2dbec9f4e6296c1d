"""How commands open the collection that was named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from polysem.data.collection import Collection

FolderLabels = Annotated[bool, typer.Option("--folder-labels", help="Names of subfolders are labels.")]


def opened(source: str | Path, folder_labels: bool = False) -> Collection:
    """folder_labels: of a folder of pictures, take the names of its subfolders for labels."""
    from polysem.data import open_collection

    options: dict[str, Any] = {"folder_labels": True} if folder_labels else {}
    return open_collection(source, **options)
