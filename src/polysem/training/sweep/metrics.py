"""The figures of a finished run: its validation, or a protocol's, measured once and kept beside the run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polysem import models
from polysem.data.collection import Collection
from polysem.evaluation import Protocol, evaluate
from polysem.models import Model
from polysem.recipes import Recipe
from polysem.training import precompute
from polysem.training.sweep.result import of_validation

Stores = tuple[Path | None, Path | None]
Report = Callable[[str, int, int], None]
"""Stage, done, of."""


@dataclass(frozen=True, eq=False)
class Measure:
    """protocol: None takes the validation that each run has made of itself. split: of the collection.
    stores: features of images and captions, completed with those of this split."""

    collection: Collection
    protocol: Protocol | None = None
    split: str | None = None
    stores: Stores = (None, None)

    def figures(
        self, run: Path, about: Mapping[str, Any], recipe: Recipe, report: Report
    ) -> tuple[dict[str, float], str]:
        """-> by path, and the stamp. about: the run's run.json."""
        if self.protocol is None:
            return of_validation(about.get("best") or {}), str(about.get("protocol", ""))
        asked = {"protocol": repr(self.protocol), "split": self._split, "weights": _weights(run)}
        kept = run.with_name(f"{run.name}.{self.protocol.name}.json")
        found = _read(kept)
        if found.get("asked") != asked:
            found = {"asked": asked, **self._measured(run, recipe, report)}
            partial = kept.with_name(f".{kept.name}.partial")
            partial.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            os.replace(partial, kept)
        numbers = {name: value for name, value in found["metrics"].items() if isinstance(value, (int, float))}
        return numbers, str(found["protocol"]["stamp"])

    def _measured(self, run: Path, recipe: Recipe, report: Report) -> dict[str, Any]:
        if self.protocol is None:
            raise TypeError("no protocol to measure with")
        model = models.load(run)
        features, text_features = self._features(model, recipe, report)
        found = evaluate(
            model,
            self.collection,
            protocol=self.protocol,
            split=self._split,
            features=features,
            text_features=text_features,
            intervals=False,
            progress=report,
        )
        return {**found.as_dict(), "model": run.name}

    @property
    def _split(self) -> str:
        """The one asked for; else test, or whatever was not trained on."""
        if not self.collection.has_splits:
            return self.split or "val"
        there = [name for name in ("test", "val", *self.collection.splits) if name in self.collection.splits]
        return self.split or there[0]

    def _features(self, model: Model, recipe: Recipe, report: Report) -> Stores:
        """Encoders that never change run once for all runs, here as in training."""
        part = self.collection
        if self._split == "val" and not part.has_splits:
            part = part.hold_out()[0]
        elif self._split != "all":
            part = part.split(self._split)
        part = part.where([place for place, item in enumerate(part) if item.captions])
        found: list[Path | None] = []
        for tower, side, given, what in (
            (model.image, recipe.image, self.stores[0], "images"),
            (model.text, recipe.text, self.stores[1], "captions"),
        ):
            if not precompute.is_frozen(tower.encoder, side):
                found.append(None)
                continue

            def advance(_: str, done: int, total: int, /, what: str = what) -> None:
                report(f"features of {what}", done, total)

            found.append(precompute.features_of(part, tower.encoder, given, advance).folder)
        return found[0], found[1]


def _weights(run: Path) -> list[int]:
    """Changes when the model in the folder does."""
    try:
        state = (run / "model.safetensors").stat()
    except OSError:
        return []
    return [state.st_size, state.st_mtime_ns]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
