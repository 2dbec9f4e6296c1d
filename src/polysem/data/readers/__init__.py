"""Readers: one file for each layout people keep their data in, and `open_collection`, which tells them apart."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polysem.data.collection import Collection
from polysem.data.reader_errors import DataError, Problems
from polysem.data.readers.coco import read_coco
from polysem.data.readers.flickr_tags import read_mirflickr, read_nus_wide
from polysem.data.readers.folder import picture_files, read_folder
from polysem.data.readers.karpathy import read_karpathy
from polysem.data.readers.precomp import read_precomp
from polysem.data.readers.text import read_json
from polysem.data.readers.video import read_video, read_video_folder, video_files
from polysem.errors import unknown

__all__ = [
    "open_collection",
    "read_coco",
    "read_folder",
    "read_karpathy",
    "read_mirflickr",
    "read_nus_wide",
    "read_precomp",
    "read_video",
    "read_video_folder",
]


def open_collection(path: str | Path, problems: Problems | None = None, **options: Any) -> Collection:
    """The collection at `path`, whatever its layout. Options are those of the reader that fits (images=… and so on)."""
    path = Path(path).expanduser()
    if not path.exists():
        raise DataError(f"{path}: no such file or folder.")
    reader, argument = _recognise(path)
    known = [
        name for name in inspect.signature(reader).parameters if name not in ("problems", "path", "folder", "files")
    ]
    for option in options:
        if option not in known:
            raise unknown(f"option of {reader.__name__}", option, known)
    return reader(argument, problems=problems, **options)


def _recognise(path: Path) -> tuple[Callable[..., Collection], Any]:
    if path.is_file():
        return _recognise_file(path)
    karpathy = sorted(path.glob("dataset_*.json"))
    if len(karpathy) > 1:
        raise DataError(
            f"{path}: holds several data sets ({', '.join(p.name for p in karpathy)}). Name the one you mean."
        )
    if karpathy:
        return read_karpathy, karpathy[0]
    for folder in (path, path / "precomp"):
        if any(folder.glob("*_ims.npy")):
            return read_precomp, folder
    for folder in (path, path / "annotations"):
        coco = sorted([*folder.glob("captions_*.json"), *folder.glob("instances_*.json")])
        if coco:
            return read_coco, coco
    if (path / "meta" / "tags").is_dir():
        return read_mirflickr, path
    if (path / "ImageList").is_dir() and (path / "Groundtruth").is_dir():
        return read_nus_wide, path
    captions, has_videos = path / "captions.json", next(video_files(path), None) is not None
    named = any((path / name).is_dir() for name in ("features", "videos"))  # perhaps a link to where they are
    if captions.is_file() and (named or has_videos):
        return read_video, captions
    if has_videos and next(picture_files(path), None) is None:
        return read_video_folder, path
    return read_folder, path


def _recognise_file(path: Path) -> tuple[Callable[..., Collection], Any]:
    if path.suffix in (".csv", ".jsonl"):

        def read_table(table: Path, **options: Any) -> Collection:
            return read_folder(table.parent, table=table, **options)

        return read_table, path
    if path.suffix != ".json":
        raise DataError(f"{path}: expected a folder, a .json, a .csv or a .jsonl table.")
    content = read_json(path)
    if isinstance(content, dict) and "annotations" in content:
        return read_coco, [path]
    if isinstance(content, dict) and isinstance(content.get("images"), list):
        return read_karpathy, path
    return read_video, path
