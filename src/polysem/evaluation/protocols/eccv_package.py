"""The data files of the package `eccv-caption`: COCO's test captions in order, ECCV Caption's and CxC's positives.

The package itself is not imported: it warns about what it misses, and only its files are wanted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np

from polysem.environment.packages import install_command
from polysem.errors import InputError
from polysem.evaluation.protocols.coco_ids import CocoTest

Positives = Mapping[int, Sequence[int]]
"""Ids of right answers by the query's id."""


@dataclass(frozen=True)
class Annotation:
    i2t: Positives
    t2i: Positives


@dataclass(frozen=True)
class EccvPackage:
    """folder: of its data files."""

    folder: Path

    @classmethod
    def find(cls, folder: str | Path | None, who: str, why: str = "reads its annotation from") -> EccvPackage:
        """folder: where the files are, if the package is not installed. who, why: the protocol that needs them."""
        if folder is not None:
            return cls(Path(folder).expanduser())
        found = find_spec("eccv_caption")
        if found is None or not found.submodule_search_locations:
            raise InputError(
                f"Protocol {who} {why} the package eccv-caption, which is not installed. Install it: "
                f"{install_command('eccv')}"
            )
        return cls(Path(found.submodule_search_locations[0]) / "data")

    def coco_test(self) -> CocoTest:
        """The 5,000 test images in Karpathy's order, with their five captions each."""
        path = self.folder / "coco_test_ids.npy"
        try:
            captions = np.load(path, allow_pickle=False).astype(np.int64)
        except (OSError, ValueError) as error:
            raise self._broken(path, error) from None
        owner = self._positives("original_caption_to_image")
        try:
            images = np.array([owner[caption][0] for caption in captions.tolist()]).reshape(-1, 5)
        except (KeyError, IndexError, ValueError) as error:
            raise self._broken(path, error) from None
        if (images != images[:, :1]).any():
            raise self._broken(path, "captions of one image are not side by side")
        return CocoTest(images[:, 0], captions.reshape(-1, 5))

    def annotation(self, name: Literal["eccv", "cxc"]) -> Annotation:
        return Annotation(self._positives(f"{name}_image_to_caption"), self._positives(f"{name}_caption_to_image"))

    def _positives(self, name: str) -> Positives:
        path = self.folder / f"{name}.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return {int(query): [int(answer) for answer in answers] for query, answers in content.items()}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise self._broken(path, error) from None

    def _broken(self, path: Path, why: object) -> InputError:
        return InputError(
            f"{path} is not the file of the package eccv-caption that was expected ({why}). Install the package again "
            "(pip install --force-reinstall eccv-caption), or name a folder of its data files (--option "
            "annotations=FOLDER)."
        )
