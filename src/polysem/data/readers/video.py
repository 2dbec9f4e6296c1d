"""Videos, as raw files or as frame features (a `.npy` of (frames, dim) for each), with captions in JSON as MSR-VTT,
VATEX or TGIF have, or without any."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from polysem.data.collection import Collection, DataError, Item, Media, Problems
from polysem.data.images import is_image
from polysem.data.readers import base
from polysem.data.video import EXTENSIONS, VideoMetadata, is_video

_SENTENCE = {"video_id": object, "caption": object}
_EXPECTED_SPLITS = 'Expected {"train": ["video", …], "test": […]} or {"video": "train", …}, named as in the captions.'


def _recognise_captions(data: base.DataLocation) -> dict[str, Any] | None:
    """Any JSON that no other reader claims, or a folder with captions.json and something to describe."""
    if not data.is_folder:
        return None if data.json is None else {"captions": data.path}
    captions = data.path / "captions.json"
    named = any((data.path / name).is_dir() for name in ("features", "videos"))  # perhaps a link to where they are
    return {"captions": captions} if captions.is_file() and (named or _holds(data.path, is_video)) else None


@base.register_reader(_recognise_captions, priority=60, layout="captions of videos in JSON")
def read_video(
    captions: Path,
    features: Path | None = None,
    splits: Path | None = None,
    repair_bytes: bool = False,
    problems: Problems | None = None,
    videos: Path | None = None,
) -> Collection:
    """Read captions of videos. A caption that repeats within a video is kept once; videos are not opened here.

    Args:
        captions: JSON of {"video": ["a caption", …]}, MSR-VTT's {"sentences": …, "videos": …} or VATEX's
            [{"videoID", "enCap"}].
        features: folder of `video.npy`, `features/` beside the JSON if not given.
        splits: JSON of {"train": ["video", …], …} or {"video": "train", …}, the names with or without the file's
            ending; `splits.json` beside the captions, if there, when not given.
        videos: folder of `video.mp4` (.webm, .mkv, .mov, .avi …), `videos/` beside the JSON or the JSON's own folder
            if not given; features come first.
    """
    problems = problems or Problems()
    folder, files = _find_content(captions, features, videos)
    what = "features" if files is None else "videos"
    texts, split_of = _parse_captions(base.read_json(captions), captions, problems)
    file = splits or captions.parent / "splits.json"
    if splits is not None or file.is_file():
        _assign_splits(file, texts, split_of, problems)
    items = []
    for video, raw in texts.items():
        name = f"{video}.npy" if files is None else files.get(video)
        if name is None or not (folder / name).is_file():
            problems.skip(f"missing {what}", video, f"has no {name or 'file of this name'} in {folder}.")
            continue
        cleaned = tuple(dict.fromkeys(base.clean_captions(raw, video, problems, repair_bytes)))
        split = base.normalise_split(split_of.get(video))
        metadata = {} if files is None else VideoMetadata(folder / name)
        items.append(Item(video, Media(folder, name), cleaned, (), split, metadata=metadata))
    if not items:
        raise DataError(f"{captions}: none of its {len(texts)} videos has {what} in {folder}.")
    return Collection(captions.parent.name, "video", items, problems.skipped)


def _holds(folder: Path, accept: Callable[[Path], bool]) -> bool:
    return next(base.walk_files(folder, accept), None) is not None


def _recognise_videos(data: base.DataLocation) -> dict[str, Any] | None:
    videos_alone = data.is_folder and _holds(data.path, is_video) and not _holds(data.path, is_image)
    return {"folder": data.path} if videos_alone else None


@base.register_reader(_recognise_videos, priority=70, layout="a folder of videos")
def read_video_folder(folder: Path, problems: Problems | None = None) -> Collection:
    """Read every video below a folder, without captions; an item's id is its path from there."""
    problems = problems or Problems()
    names = base.walk_files(folder, is_video)
    items = [Item(name, Media(folder, name), metadata=VideoMetadata(folder / name)) for name in names]
    if not items:
        raise DataError(f"{folder}: no videos here ({', '.join(sorted(EXTENSIONS))}).")
    return Collection(folder.name, "video", items, problems.skipped)


def _find_content(captions: Path, features: Path | None, videos: Path | None) -> tuple[Path, dict[str, str] | None]:
    """The folder of the features or of the videos; of videos also the file of each, by its name."""
    beside = captions.parent
    if videos is None and (features is not None or (beside / "features").is_dir()):
        folder = features or beside / "features"
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder of frame features (one .npy of (frames, dim) per video).")
        return folder, None
    folder = videos or (beside / "videos" if (beside / "videos").is_dir() else beside)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder of videos ({', '.join(sorted(EXTENSIONS))}).")
    files: dict[str, str] = {}
    for name in base.walk_files(folder, is_video):
        # By its whole name, or without the extension: of two that share it, the first.
        files.setdefault(Path(name).with_suffix("").as_posix(), name)
        files[name] = name
    if not files:
        raise DataError(
            f"{captions}: neither a folder {beside / 'features'} of frame features (a .npy of (frames, dim) per video) "
            f"nor any video in {folder} ({', '.join(sorted(EXTENSIONS))}). Say where they are: features=… or videos=…"
        )
    return folder, files


def _parse_captions(content: Any, path: Path, problems: Problems) -> tuple[dict[str, list[object]], dict[str, str]]:
    """The captions and the split of each video."""
    texts: dict[str, list[object]] = defaultdict(list)
    if isinstance(content, dict) and isinstance(content.get("sentences"), list):  # MSR-VTT
        for entry in base.complete_entries(content["sentences"], "sentence", _SENTENCE, path.name, problems):
            texts[str(entry["video_id"])].append(entry["caption"])
        videos = content.get("videos", [])
        if not isinstance(videos, list):
            expected = '[{"video_id", "split"}, …] or nothing'
            raise DataError(f"{path}: its 'videos' is {videos!r:.40}; expected {expected}.")
        known = base.complete_entries(videos, "video", {"video_id": object}, path.name, problems)
        return texts, {str(video["video_id"]): str(video["split"]) for video in known if video.get("split")}
    if isinstance(content, list) and all(isinstance(entry, dict) and "videoID" in entry for entry in content):  # VATEX
        for entry in content:
            captions = entry.get("enCap", [])
            if isinstance(captions, list):
                texts[str(entry["videoID"])] = captions
            else:
                message = f"enCap of {entry['videoID']} is {captions!r:.40}; expected a list of captions."
                problems.error("malformed entry", path.name, message)
        return texts, {}
    if isinstance(content, dict) and all(isinstance(value, list) for value in content.values()):
        return {str(video): list(captions) for video, captions in content.items()}, {}
    raise DataError(
        f"{path}: not a captions file that is known here: expected {{video: [captions]}}, "
        'MSR-VTT\'s {"sentences": …, "videos": …} or VATEX\'s [{"videoID", "enCap"}].'
    )


def _assign_splits(path: Path, texts: Iterable[str], split_of: dict[str, str], problems: Problems) -> None:
    """Put each video in the split that the file names."""
    ids, by_stem = set(texts), defaultdict(list)
    for video in texts:
        by_stem[_strip_ending(video)].append(video)
    content = base.read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path}: got {content!r:.40}. {_EXPECTED_SPLITS}")
    if content and all(isinstance(value, str) for value in content.values()):
        named = list(content.items())
    else:
        for split, videos in content.items():
            if not isinstance(videos, list) or not all(isinstance(video, (str, int)) for video in videos):
                raise DataError(f"{path}: {split!r} has {videos!r:.40}. {_EXPECTED_SPLITS}")
        named = [(str(video), split) for split, videos in content.items() for video in videos]
    unmatched = []
    for name, split in named:
        # The whole name comes first: v1 and v1.mp4 may be two items.
        matches = [name] if name in ids else by_stem.get(_strip_ending(name), [])
        if not matches:
            unmatched.append(name)
        for video in matches:
            if split_of.get(video, split) != split:
                problems.error("two splits", video, f"is in {split_of[video]!r} and in {split!r}.")
            split_of[video] = split
    if not unmatched:
        return
    message = f"{len(unmatched)} of its {len(named)} names fit no video with captions (such as {unmatched[0]!r})"
    if len(unmatched) == len(named):
        raise DataError(f"{path}: {message}; the captions have {min(ids, default='none')!r} …. {_EXPECTED_SPLITS}")
    problems.skip("unknown video", path.name, f"{message}.")


def _strip_ending(video: str) -> str:
    """Without the ending of a video or its features; any other dot belongs to the name."""
    ending = Path(video).suffix
    return video.removesuffix(ending) if ending.lower() in {*EXTENSIONS, ".npy"} else video
