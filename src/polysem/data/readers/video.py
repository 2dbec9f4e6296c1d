"""Videos, as raw files or as frame features (a `.npy` of (frames, dim) for each), with captions in JSON as MSR-VTT,
VATEX or TGIF have, or without any."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from polysem.data.collection import Collection, Item, Media
from polysem.data.problems import DataError, Problems
from polysem.data.readers.text import clean_captions, read_json, split_name
from polysem.data.video import EXTENSIONS, is_video
from polysem.data.video_facts import VideoFacts

Find = Callable[[str], Media | None]


def read_video(
    captions: Path,
    features: Path | None = None,
    splits: Path | None = None,
    repair_bytes: bool = False,
    problems: Problems | None = None,
    videos: Path | None = None,
) -> Collection:
    """captions: {"video": ["a caption", …]}, MSR-VTT's {"sentences": …, "videos": …} or VATEX's [{"videoID", "enCap"}].

    features: folder of `video.npy`, `features/` beside the JSON if not given. videos: folder of `video.mp4` (.webm,
    .mkv, .mov, .avi …), `videos/` beside the JSON or the JSON's own folder if not given; features come first.
    splits: JSON of {"train": ["video", …], …}; `splits.json` beside the captions, if there, when not given.
    A caption that repeats within a video is kept once. Videos are not opened here: what cannot be read is left out by
    those who open it, with the reason.
    """
    problems = problems or Problems()
    folder, find, what = _content(captions, features, videos)
    texts, split_of = _captions(read_json(captions), captions)
    for split, named in _splits(splits or captions.parent / "splits.json", required=splits is not None).items():
        for video in named:
            if split_of.get(video, split) != split:
                problems.error("two splits", video, f"is in {split_of[video]!r} and in {split!r}.")
            split_of[video] = split
    items = []
    for video, raw in texts.items():
        media = find(video)
        if media is None:
            wanted = f"{video}.npy" if what == "features" else "file of this name"
            problems.skip(f"missing {what}", video, f"has no {wanted} in {folder}.")
            continue
        cleaned = clean_captions(raw, video, problems, repair_bytes)
        items.append(_item(video, media, tuple(dict.fromkeys(cleaned)), split_name(split_of.get(video))))
    if not items:
        raise DataError(f"{captions}: none of its {len(texts)} videos has {what} in {folder}.")
    return Collection(captions.parent.name, "video", items, problems.skipped)


def read_video_folder(folder: Path, problems: Problems | None = None) -> Collection:
    """Every video below `folder`, without captions; an item's id is its path from there."""
    problems = problems or Problems()
    items = [_item(name, Media(folder, name)) for name in video_files(folder)]
    if not items:
        raise DataError(f"{folder}: no videos here ({', '.join(sorted(EXTENSIONS))}).")
    return Collection(folder.name, "video", items, problems.skipped)


def video_files(folder: Path) -> Iterator[str]:
    """Relative paths in a fixed order. Links to folders are not followed: they may lead in circles."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith(".") and is_video(Path(name)):
                yield (Path(place) / name).relative_to(folder).as_posix()


def _item(name: str, media: Media, captions: tuple[str, ...] = (), split: str | None = None) -> Item:
    if media.is_features:
        return Item(name, media, captions, (), split)
    return Item(name, media, captions, (), split, metadata=VideoFacts(media.path))


def _content(captions: Path, features: Path | None, videos: Path | None) -> tuple[Path, Find, str]:
    """Where the videos are, how one is found by its name, and what is there."""
    beside = captions.parent
    if videos is None and (features is not None or (beside / "features").is_dir()):
        folder = features or beside / "features"
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder of frame features (one .npy of (frames, dim) per video).")
        return folder, lambda video: _features(folder, video), "features"
    folder = videos or (beside / "videos" if (beside / "videos").is_dir() else beside)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder of videos ({', '.join(sorted(EXTENSIONS))}).")
    files: dict[str, str] = {}
    for name in video_files(folder):
        # By its whole name, or without the extension: of two that share it, the first.
        files.setdefault(Path(name).with_suffix("").as_posix(), name)
        files[name] = name
    if not files:
        raise DataError(
            f"{captions}: there is neither a folder {beside / 'features'} of frame features (one .npy of (frames, dim) "
            f"per video) nor any video in {folder} ({', '.join(sorted(EXTENSIONS))}). Say where they are: "
            "features=… or videos=…"
        )
    return folder, lambda video: Media(folder, files[video]) if video in files else None, "videos"


def _features(folder: Path, video: str) -> Media | None:
    return Media(folder, f"{video}.npy") if (folder / f"{video}.npy").is_file() else None


def _captions(content: Any, path: Path) -> tuple[dict[str, list[object]], dict[str, str]]:
    texts: dict[str, list[object]] = defaultdict(list)
    if isinstance(content, dict) and isinstance(content.get("sentences"), list):
        for entry in content["sentences"]:
            texts[str(entry["video_id"])].append(entry["caption"])
        split_of = {str(v["video_id"]): str(v["split"]) for v in content.get("videos", []) if "split" in v}
        return texts, split_of
    if isinstance(content, list) and all(isinstance(entry, dict) and "videoID" in entry for entry in content):
        return {str(entry["videoID"]): list(entry.get("enCap", [])) for entry in content}, {}
    if isinstance(content, dict) and all(isinstance(value, list) for value in content.values()):
        return {str(video): list(captions) for video, captions in content.items()}, {}
    raise DataError(
        f"{path}: not a captions file that is known here: expected {{video: [captions]}}, "
        'MSR-VTT\'s {"sentences": …, "videos": …} or VATEX\'s [{"videoID", "enCap"}].'
    )


def _splits(path: Path, required: bool) -> dict[str, list[str]]:
    if not path.is_file() and not required:
        return {}
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f'{path}: expected {{"train": ["video", …], …}}.')
    return {str(split): [str(video) for video in videos] for split, videos in content.items()}
