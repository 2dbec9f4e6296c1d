"""A collection in figures, and everything that is wrong with it, found before it costs a training run."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import ExifTags, Image

from polysem.data.collection import Collection, DataError, Item, Problem, Problems, load_features
from polysem.data.images import ImageError, load_image
from polysem.data.readers import open_collection
from polysem.data.video import VideoError, is_video, sample_frames
from polysem.data.vocabulary import tokenise
from polysem.errors import InputError
from polysem.progress import Progress, ignore

_THREADS = 4
_FRAMES = 8


@dataclass(frozen=True)
class CheckReport:
    """What `check` found. collection: what could be read, None if nothing could. problems: in order."""

    collection: Collection | None
    problems: tuple[Problem, ...]

    @property
    def has_no_errors(self) -> bool:
        """True unless something is an error."""
        return all(problem.severity != "error" for problem in self.problems)


def check_collection(path: str | Path, progress: Progress = ignore, **options: Any) -> CheckReport:
    """Read a collection leniently and look at every picture, video or feature in it. options: of `open_collection`."""
    problems = Problems(strict=False)
    try:
        collection = open_collection(path, problems=problems, **options)
    except DataError as error:
        return CheckReport(None, (*problems.entries, Problem("unreadable", str(path), str(error), "error")))
    bare = [item.id for item in collection if not item.captions]
    for name in bare if len(bare) < len(collection) else ():
        problems.note("no caption", name, "has no caption.")
    owners: dict[str, list[Item]] = defaultdict(list)
    for item in collection:
        for caption in set(item.captions):
            owners[caption].append(item)
    for caption, items in owners.items():
        if len(items) > 1:
            problems.note("shared caption", items[1].id, f"{caption[:60]!r} also describes {items[0].id}.")
    check = _check_features if collection.content == "features" else _check_pictures
    check(collection, problems, progress)
    return CheckReport(collection, tuple(problems.entries))


def _check_pictures(collection: Collection, problems: Problems, progress: Progress) -> None:
    what = "video" if collection.content == "videos" else "picture"
    seen: dict[str, Item] = {}
    for done, (item, inspection) in enumerate(_inspect_all(collection), 1):
        progress("checking", done, len(collection))
        if isinstance(inspection, InputError):
            problems.skip(f"unreadable {what}", item.id, str(inspection))
            continue
        digest, peculiarities = inspection
        for kind in peculiarities:
            problems.note(kind, item.id, f"is {kind}; it is read as upright RGB.")
        before = seen.setdefault(digest, item)
        if before.split != item.split:
            shown = f"({item.split}) shows the {what} of {before.id} ({before.split})"
            problems.error("leak", item.id, f"{shown}: results would be flattered.")
        elif before is not item:
            problems.note(f"duplicate {what}", item.id, f"shows the same {what} as {before.id}.")


def _inspect_all(collection: Collection) -> Iterator[tuple[Item, tuple[str, list[str]] | InputError]]:
    """Look at every item on a few threads, a short stretch ahead, so that memory stays flat."""
    items = iter(collection)
    with ThreadPoolExecutor(_THREADS) as pool:
        while stretch := list(islice(items, 64)):
            yield from zip(stretch, pool.map(_inspect, stretch), strict=True)


def _inspect(item: Item) -> tuple[str, list[str]] | InputError:
    """The hash of a picture or video and what is peculiar about it, or why it cannot be read."""
    path, content = item.media.path, hashlib.blake2b(digest_size=16)
    try:
        if is_video(path):
            # Frames from all over it: damage shows, and two videos that agree in all of them are the same.
            for frame in sample_frames(path, _FRAMES):
                content.update(b"%d %d" % frame.image.size + frame.image.tobytes())
            return content.hexdigest(), []
        picture = load_image(path)
    except (ImageError, VideoError) as error:
        return error
    content.update(b"%d %d" % picture.size + picture.tobytes())
    with Image.open(path) as image:
        peculiarities = {
            "greyscale": image.mode in ("1", "L", "LA", "I", "I;16", "F"),
            "CMYK": image.mode == "CMYK",
            "EXIF-rotated": image.getexif().get(ExifTags.Base.Orientation, 1) != 1,
            "animated": getattr(image, "n_frames", 1) > 1,
        }
    return content.hexdigest(), [kind for kind, holds in peculiarities.items() if holds]


def _check_features(collection: Collection, problems: Problems, progress: Progress) -> None:
    widths: dict[int, Item] = {}
    for done, item in enumerate(collection, 1):
        try:
            widths.setdefault(load_features(item.media).shape[1], item)
        except DataError as error:
            problems.error("bad features", item.id, str(error))
        progress("checking", done, len(collection))
    if len(widths) > 1:
        list_of_widths = ", ".join(f"{width} ({item.id})" for width, item in widths.items())
        problems.error("uneven widths", collection.name, f"features of different widths: {list_of_widths}.")


def compute_statistics(collection: Collection) -> dict[str, Any]:
    """Count everything that a collection holds; pictures are not opened."""
    vocabulary = Counter(word for caption in collection.captions for word in tokenise(caption))
    words, captions = vocabulary.total(), len(collection.captions)
    return {
        "name": collection.name,
        "kind": collection.kind,
        "items": len(collection),
        "splits": collection.splits,
        "captions": captions,
        "captions_per_item": dict(sorted(Counter(len(item.captions) for item in collection).items())),
        "words": words,
        "mean_words_per_caption": words / captions if captions else 0.0,
        "different_words": len(vocabulary),
        "labels": dict(Counter(label for item in collection for label in item.labels).most_common()),
        "boxes": sum(len(item.boxes) for item in collection),
        "skipped": len(collection.skipped),
    }
