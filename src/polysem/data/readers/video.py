"""Videos, as raw files or as frame features (a `.npy` of (frames, dim) for each), with captions in JSON as MSR-VTT,
VATEX or TGIF have, or without any."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from polysem.data.collection import Collection, Item, Media
from polysem.data.reader_errors import DataError, Problems
from polysem.data.readers.text import clean_captions, read_json, split_name
from polysem.data.video import EXTENSIONS, is_video
from polysem.data.video_metadata import VideoFacts

Find = Callable[[str], Media | None]
_EXPECTED_SPLITS = 'Expected {"train": ["video", …], "test": […]} or {"video": "train", …}, named as in the captions.'


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
    splits: JSON of {"train": ["video", …], …} or {"video": "train", …}, the names with or without the file's ending;
    `splits.json` beside the captions, if there, when not given.
    A caption that repeats within a video is kept once. Videos are not opened here: what cannot be read is left out by
    those who open it, with the reason.
    """
    problems = problems or Problems()
    folder, find, what = _content(captions, features, videos)
    texts, split_of = _captions(read_json(captions), captions, problems)
    file = splits or captions.parent / "splits.json"
    if splits is not None or file.is_file():
        _assign(file, texts, split_of, problems)
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


def _captions(content: Any, path: Path, problems: Problems) -> tuple[dict[str, list[object]], dict[str, str]]:
    if isinstance(content, dict) and isinstance(content.get("sentences"), list):
        return _msr_vtt(content, path, problems)
    if isinstance(content, list) and all(isinstance(entry, dict) and "videoID" in entry for entry in content):
        return _vatex(content, path, problems), {}
    if isinstance(content, dict) and all(isinstance(value, list) for value in content.values()):
        return {str(video): list(captions) for video, captions in content.items()}, {}
    raise DataError(
        f"{path}: not a captions file that is known here: expected {{video: [captions]}}, "
        'MSR-VTT\'s {"sentences": …, "videos": …} or VATEX\'s [{"videoID", "enCap"}].'
    )


def _msr_vtt(content: Any, path: Path, problems: Problems) -> tuple[dict[str, list[object]], dict[str, str]]:
    texts: dict[str, list[object]] = defaultdict(list)
    for entry in _complete(content["sentences"], "sentence", ("video_id", "caption"), path, problems):
        texts[str(entry["video_id"])].append(entry["caption"])
    videos = content.get("videos", [])
    if not isinstance(videos, list):
        raise DataError(f'{path}: its \'videos\' is {videos!r:.40}; expected [{{"video_id", "split"}}, …] or nothing.')
    known = _complete(videos, "video", ("video_id",), path, problems)
    return texts, {str(video["video_id"]): str(video["split"]) for video in known if video.get("split")}


def _vatex(content: list[dict[str, Any]], path: Path, problems: Problems) -> dict[str, list[object]]:
    texts: dict[str, list[object]] = {}
    for entry in content:
        captions = entry.get("enCap", [])
        if not isinstance(captions, list):
            said = f"enCap of {entry['videoID']} is {captions!r:.40}; expected a list of captions."
            problems.error("malformed entry", path.name, said)
            continue
        texts[str(entry["videoID"])] = captions
    return texts


def _complete(
    entries: list[Any], what: str, fields: tuple[str, ...], path: Path, problems: Problems
) -> Iterator[dict[str, Any]]:
    """The entries that have all these fields; the others are errors."""
    for place, entry in enumerate(entries):
        known = entry if isinstance(entry, dict) else {}
        lacking = next((field for field in fields if known.get(field) is None), None)
        if lacking is None:
            yield known
            continue
        said = f"{what} {place} (counted from 0) has no {lacking}: {entry!r:.60}. Mend or remove it."
        problems.error("malformed entry", path.name, said)


def _assign(path: Path, texts: Iterable[str], split_of: dict[str, str], problems: Problems) -> None:
    """Put each video in the split that the file names."""
    ids, bare = set(texts), defaultdict(list)
    for video in texts:
        bare[_bare(video)].append(video)
    named = _splits(path)
    lost = []
    for name, split in named:
        # The whole name comes first: v1 and v1.mp4 may be two items.
        meant = [name] if name in ids else bare.get(_bare(name), [])
        if not meant:
            lost.append(name)
        for video in meant:
            if split_of.get(video, split) != split:
                problems.error("two splits", video, f"is in {split_of[video]!r} and in {split!r}.")
            split_of[video] = split
    if not lost:
        return
    said = f"{len(lost)} of its {len(named)} names fit no video with captions (such as {lost[0]!r})"
    if len(lost) == len(named):
        raise DataError(f"{path}: {said}; the captions have {min(ids, default='none')!r} …. {_EXPECTED_SPLITS}")
    problems.skip("unknown video", path.name, f"{said}.")


def _bare(video: str) -> str:
    """Without the ending of a video or its features; any other dot belongs to the name."""
    ending = Path(video).suffix
    return video.removesuffix(ending) if ending.lower() in {*EXTENSIONS, ".npy"} else video


def _splits(path: Path) -> list[tuple[str, str]]:
    """Each video that is named, with its split."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path}: got {content!r:.40}. {_EXPECTED_SPLITS}")
    if content and all(isinstance(value, str) for value in content.values()):
        return list(content.items())
    for split, videos in content.items():
        if not isinstance(videos, list) or not all(isinstance(video, (str, int)) for video in videos):
            raise DataError(f"{path}: {split!r} has {videos!r:.40}. {_EXPECTED_SPLITS}")
    return [(str(video), split) for split, videos in content.items() for video in videos]
