"""Pictures with tags for text and a list of labels: MIRFLICKR-25K and NUS-WIDE as their authors pack them."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path, PureWindowsPath

from polysem.data.collection import Collection, DataError, Item, Media, Problems
from polysem.data.images import is_image
from polysem.data.readers.base import clean_captions, read_text, recognise_folders, register_reader

_PICTURE = re.compile(r"im(\d+)\.\w+")


@register_reader(recognise_folders("meta/tags"), priority=40, layout="MIRFLICKR-25K")
def read_mirflickr(
    folder: Path, annotations: Path | None = None, relevant: bool = False, problems: Problems | None = None
) -> Collection:
    """Read MIRFLICKR-25K: im<n>.jpg, meta/tags/tags<n>.txt with a tag per line, and picture numbers per label.

    The tags of a picture are one text, in their order. It has no splits.

    Args:
        annotations: the folder of the label files, looked for inside if not given.
        relevant: also take the stricter *_r1 files, as labels of their own.
    """
    problems = problems or Problems()
    pictures = {int(match[1]): path for path in folder.iterdir() if (match := _PICTURE.fullmatch(path.name))}
    if not pictures:
        raise DataError(f"{folder}: no pictures im1.jpg, im2.jpg, … here.")
    # The label files are in the folder whose name says so, else beside the pictures.
    named = sorted(path for path in folder.rglob("*annotations*") if path.is_dir()) or [folder]
    files = [path for parent in ([annotations] if annotations else named) for path in sorted(parent.glob("*.txt"))]
    if not files and not annotations:
        raise DataError(f"{folder}: no label files (animals.txt, baby.txt, …). Name their folder with annotations=….")
    labels: dict[int, list[str]] = defaultdict(list)
    for path in files:
        name = path.stem
        if name.lower().startswith("readme") or (name.endswith("_r1") and not relevant):
            continue
        for line in _read_lines(path):
            if not line.isdecimal():
                raise DataError(f"{path}: expected a picture's number on each line, got {line[:40]!r}.")
            labels[int(line)].append(name)
    items = []
    for number, path in sorted(pictures.items()):
        tags = folder / "meta" / "tags" / f"tags{number}.txt"
        text = [" ".join(_read_lines(tags))] if tags.is_file() else []
        captions = clean_captions([one for one in text if one], path.name, problems)
        items.append(Item(path.name, Media(folder, path.name), captions, tuple(labels[number])))
    return Collection(folder.name, "image", items, problems.skipped)


@register_reader(recognise_folders("ImageList", "Groundtruth"), priority=50, layout="NUS-WIDE")
def read_nus_wide(folder: Path, images: Path | None = None, problems: Problems | None = None) -> Collection:
    """Read NUS-WIDE: ImageList/, Groundtruth/ with a 0 or 1 per picture and label, and the list of all tags.

    The tags of a picture are one text. The authors' train and test lists are the splits.

    Args:
        images: the folder of the pictures, by default Flickr/; many are missing there, and left out.
    """
    problems = problems or Problems()
    root = images or folder / "Flickr"
    listed = _read_lines(_find_file(folder, "ImageList/[Ii]mage[Ll]ist.txt"))
    names = [PureWindowsPath(line).as_posix() for line in listed]
    labels: list[list[str]] = [[] for _ in names]
    for path in sorted(folder.glob("Groundtruth/AllLabels/Labels_*.txt")):
        flags = _read_lines(path)
        if len(flags) != len(names):
            raise DataError(f"{path}: expected {len(names)} lines of 0 or 1, one per picture; got {len(flags)}.")
        wrong = next((line for line, flag in enumerate(flags) if flag not in ("0", "1")), None)
        if wrong is not None:
            given = f"line {wrong + 1}, of {names[wrong]}, is {flags[wrong][:40]!r}"
            raise DataError(f"{path}: {given}; expected 0 or 1: whether the picture has the label.")
        for names_of_image, flag in zip(labels, flags, strict=True):
            if flag == "1":
                names_of_image.append(path.stem.removeprefix("Labels_"))
    if not any(labels):
        raise DataError(f"{folder}: no Groundtruth/AllLabels/Labels_*.txt here, or all of them are empty.")
    # The number of each photo on Flickr, and its tags.
    rows = (line.split() for line in _read_lines(_find_file(folder, "*[Tt]ags*/All_Tags.txt")))
    tags = {number: " ".join(words) for number, *words in rows}
    splits = {
        PureWindowsPath(line).as_posix(): split
        for split in ("train", "test")
        for path in sorted(folder.glob(f"ImageList/{split.capitalize()}[Ii]mage[Ll]ist.txt"))
        for line in _read_lines(path)
    }
    items = []
    for name, own in zip(names, labels, strict=True):
        if not is_image(Path(name)) or not (root / name).is_file():
            problems.skip("missing picture", name, f"is not in {root}.")
            continue
        number = Path(name).stem.rpartition("_")[2]
        captions = clean_captions([tags[number]] if tags.get(number) else [], name, problems)
        items.append(Item(name, Media(root, name), captions, tuple(own), splits.get(name)))
    if not items:
        raise DataError(f"{root}: none of the {len(names)} pictures is here. Name their folder with images=….")
    return Collection("nus-wide", "image", items, problems.skipped)


def _find_file(folder: Path, pattern: str) -> Path:
    files = sorted(folder.glob(pattern))
    if not files:
        raise DataError(f"{folder}: no {pattern} here, as NUS-WIDE has it.")
    return files[0]


def _read_lines(path: Path) -> list[str]:
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]
