"""Flickr8k's judgements of people: `ExpertAnnotations.txt` and `CrowdFlowerAnnotations.txt`.

Lines of an image, a caption and three numbers, separated by tabs; a caption is called `image.jpg#number`. Experts:
three marks from 1 (does not describe the image) to 4 (describes it). Crowd: the share of those who say yes (it
describes the image, perhaps with minor mistakes), and how many said yes and no.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polysem.errors import InputError

NAMES = "ExpertAnnotations.txt or CrowdFlowerAnnotations.txt of Flickr8k"


@dataclass(frozen=True, eq=False)
class Judgements:
    """Of P pairs.

    who: "experts" or "crowd". gains: how well the caption describes the image, from 0 on. right: whether it counts as
    describing it.
    """

    who: str
    images: tuple[str, ...]
    captions: tuple[tuple[str, int], ...]
    """The image's name and the caption's number."""
    gains: npt.NDArray[np.float64]
    right: npt.NDArray[np.bool_]


def read_judgements(path: Path) -> Judgements:
    """The numbers tell the two files apart: no three marks are a share and its two counts."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}). Annotations are {NAMES}.") from None
    rows = [_row(line, f"{path} line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise InputError(f"{path} holds no judgements. Annotations are {NAMES}.")
    marks = np.array([marks for _, _, marks in rows])
    share, yes, no = marks.T
    images, captions = tuple(image for image, _, _ in rows), tuple(caption for _, caption, _ in rows)
    if (np.abs(share * (yes + no) - yes) < 0.01 * (yes + no)).all() and (yes + no > 0).all():
        return Judgements("crowd", images, captions, share, share > 0.5)
    if ((marks >= 1) & (marks <= 4)).all():
        # Almost right, with minor mistakes: a mark of 3, and what the crowd was told to call a yes.
        return Judgements("experts", images, captions, marks.mean(1) - 1.0, marks.mean(1) >= 3.0)
    raise InputError(
        f"{path}: the numbers are neither three marks from 1 to 4 nor a share with its counts of yes and no. "
        f"Annotations are {NAMES}."
    )


def _row(line: str, where: str) -> tuple[str, tuple[str, int], tuple[float, float, float]]:
    parts = line.split("\t")
    try:
        image, caption, first, second, third = parts
        name, number = caption.rsplit("#", 1)
        return image, (name, int(number)), (float(first), float(second), float(third))
    except ValueError:
        raise InputError(
            f"{where}: expected an image, a caption such as image.jpg#2 and three numbers, separated by tabs; got "
            f"{line[:80]!r}. Annotations are {NAMES}."
        ) from None
