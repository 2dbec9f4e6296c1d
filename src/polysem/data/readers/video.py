"""Videos as frame features: a `.npy` of (frames, dim) for each, and captions in JSON as MSR-VTT, VATEX or TGIF have."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from polysem.data.collection import Collection, Item, Media
from polysem.data.problems import DataError, Problems
from polysem.data.readers.text import clean_captions, read_json, split_name


def read_video(
    captions: Path,
    features: Path | None = None,
    splits: Path | None = None,
    repair_bytes: bool = False,
    problems: Problems | None = None,
) -> Collection:
    """captions: {"video": ["a caption", …]}, MSR-VTT's {"sentences": …, "videos": …} or VATEX's [{"videoID", "enCap"}].

    features: folder of `video.npy`, `features/` beside the JSON if not given.
    splits: JSON of {"train": ["video", …], …}; `splits.json` beside the captions, if there, when not given.
    A caption that repeats within a video is kept once.
    """
    problems = problems or Problems()
    folder = features or captions.parent / "features"
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder of frame features (one .npy of (frames, dim) per video).")
    texts, split_of = _captions(read_json(captions), captions)
    for split, videos in _splits(splits or captions.parent / "splits.json", required=splits is not None).items():
        for video in videos:
            if split_of.get(video, split) != split:
                problems.error("two splits", video, f"is in {split_of[video]!r} and in {split!r}.")
            split_of[video] = split
    items = []
    for video, raw in texts.items():
        name = f"{video}.npy"
        if not (folder / name).is_file():
            problems.skip("missing features", video, f"has no {name} in {folder}.")
            continue
        cleaned = clean_captions(raw, video, problems, repair_bytes)
        items.append(
            Item(video, Media(folder, name), tuple(dict.fromkeys(cleaned)), (), split_name(split_of.get(video)))
        )
    if not items:
        raise DataError(f"{captions}: none of its {len(texts)} videos has features in {folder}.")
    return Collection(captions.parent.name, "video", items, problems.skipped)


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
