"""The model that is used where none is named: the best that is really on this machine.

Reads file names and small JSON files only: nothing is loaded, fetched or imported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from polysem.environment.paths import PHOTO_BASE, PHOTO_SMALL, SHIPPED, has_fetched_weights

VARIABLE = "POLYSEM_MODEL"
"""Names the model to use where a command is given none."""

# Families of dual encoders by their `model_type`, the better at zero-shot retrieval first.
_FAMILIES = ("siglip2", "siglip", "metaclip_2", "clip", "altclip", "chinese_clip", "align", "vision-text-dual-encoder")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True)
class MissingWeights:
    """A shipped model whose encoders' weights were not fetched to this machine."""

    model: str
    weights: tuple[str, ...]

    @property
    def remedy(self) -> str:
        """The command that fetches them."""
        return " && ".join(f"polysem weights get {name}" for name in self.weights)


@dataclass(frozen=True)
class ModelChoice:
    """A model by name, and why it is chosen. better: what a better one that is shipped waits for: `MissingWeights`."""

    name: str
    why: str
    better: MissingWeights | None = None


def choose_model() -> ModelChoice:
    """The model of `POLYSEM_MODEL`; else the best dual encoder in the hub's cache; else the best shipped photo model
    whose weights are on this machine."""
    named = os.environ.get(VARIABLE)
    if named:
        return ModelChoice(named, f"{VARIABLE} names it")
    fetched = find_dual_encoders()
    if fetched:
        return ModelChoice(fetched[0], "a dual encoder that was fetched from the model hub to this machine")
    why_shipped = "it comes with polysem{}, and no dual encoder such as CLIP or SigLIP was fetched"
    better = None
    if PHOTO_BASE in SHIPPED:
        needed = find_needed_weights(SHIPPED[PHOTO_BASE])
        missing = tuple(name for name in needed if not has_fetched_weights(name))
        if not missing:
            here = f", the weights it needs are here ({', '.join(needed)})" if needed else ""
            return ModelChoice(PHOTO_BASE, why_shipped.format(here))
        better = MissingWeights(PHOTO_BASE, missing)
    return ModelChoice(PHOTO_SMALL, why_shipped.format(""), better)


def find_needed_weights(folder: Path) -> tuple[str, ...]:
    """The weights that a model folder rests on and that have to be fetched: those it knows by their answer to the probe
    picture. Others come with packages of the extra `offline`."""
    try:
        described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        sides = [described["model"][side]["encoder"] for side in described.get("probe", {})]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()
    return tuple(str(encoder["model"]) for encoder in sides if encoder.get("model"))


def find_dual_encoders() -> list[str]:
    """Names of the dual encoders that are whole in the model hub's cache, the best family first, then the newest."""
    found = []
    for name, snapshot in _list_snapshots():
        # sentence-transformers keeps the model in a folder within its own.
        inner = snapshot.glob("*/") if (snapshot / "modules.json").is_file() else ()
        for folder in (snapshot, *inner):
            family = _read_family(folder)
            if family in _FAMILIES and _is_whole(folder):
                rank = _FAMILIES.index("siglip2" if "siglip2" in name.lower() else family)
                found.append((rank, -snapshot.stat().st_mtime, name))
                break
    return [name for *_, name in sorted(found)]


def _list_snapshots() -> Iterator[tuple[str, Path]]:
    """Each model in the hub's cache, with the folder of its files as the hub's branch main was when it was fetched."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    for folder in sorted(cache.glob("models--*")):
        try:
            snapshot = folder / "snapshots" / (folder / "refs" / "main").read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if snapshot.is_dir():
            yield folder.name.removeprefix("models--").replace("--", "/"), snapshot


def _read_family(snapshot: Path) -> str | None:
    try:
        family = json.loads((snapshot / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):
        return None
    return family if isinstance(family, str) else None


def _is_whole(snapshot: Path) -> bool:
    """Whether weights, tokenizer and image processor are all there: `AutoConfig` alone fetches one small file."""
    weights = any(path.is_file() for pattern in _WEIGHTS for path in snapshot.glob(pattern))
    words = any(path.is_file() for pattern in ("tokenizer*", "vocab*") for path in snapshot.glob(pattern))
    pixels = any((snapshot / name).is_file() for name in ("preprocessor_config.json", "processor_config.json"))
    return weights and words and pixels
