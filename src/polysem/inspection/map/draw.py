"""One call from a model, or from vectors, to a map on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from polysem.atomic_write import replace_file
from polysem.data.collection import Collection
from polysem.errors import InputError
from polysem.inspection.gallery import Progress, Store, open_gallery
from polysem.inspection.map import page, picture
from polysem.inspection.map.layout import LIMIT, Map, Method, lay_out
from polysem.inspection.map.points import Points, points_of
from polysem.models import Model

Colour = Literal["slot", "label"]
PICTURES = (".png", ".svg", ".pdf")
ENDINGS = (".html", *PICTURES)


def map_space(
    subject: str | Path | Model | Points | Sequence[Points],
    data: str | Path | Collection | None = None,
    *,
    out: str | Path | None = None,
    split: str | None = None,
    method: Method = "tsne",
    colour: Colour = "slot",
    pairs: bool = False,
    limit: int = LIMIT,
    seed: int = 0,
    features: Store = None,
    text_features: Store = None,
    progress: Progress | None = None,
) -> Map:
    """The joint space of images and texts as a map.

    subject: a model or its folder, and then `data` is the collection to show; or `Points`. out: where to draw it, a
    .html page to explore or a picture (.png, .svg, .pdf). colour: what colours tell, the element's number in its set
    ("slot") or its item's label. pairs: join captions to their images. The rest as for `lay_out` and `evaluate`.
    """
    path = None if out is None else checked(out)
    if colour not in ("slot", "label"):
        raise InputError(f"Colours tell the slot or the label, got {colour!r}.")
    if isinstance(subject, (str, Path, Model)):
        if data is None:
            raise InputError("A model needs a collection whose items to show: give --data.")
        # Items alone decide how much there is to encode; a little more than fits is cut down later.
        gallery = open_gallery(
            subject, data, split=split, features=features, text_features=text_features, most=limit, progress=progress
        )
        points, title = points_of(gallery), f"{gallery.name} on {gallery.items.name} {gallery.split}"
    else:
        points, title = [subject] if isinstance(subject, Points) else list(subject), "The joint space"
    found = lay_out(points, method=method, pairs=pairs, limit=limit, seed=seed, progress=progress)
    if path is not None:
        write(found, path, title=title, colour=colour)
    return found


def write(found: Map, out: str | Path, *, title: str = "The joint space", colour: Colour = "slot") -> Path:
    """Draw a map: a page or a picture, by the ending of `out`."""
    path = checked(out)
    if colour == "label" and not found.labels:
        raise InputError("These items have no labels to colour by. Leave --colour out: colours then tell the slots.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as aside:
            if path.suffix.lower() == ".html":
                aside.write_text(page.html(found, title, colour), encoding="utf-8")
            else:
                picture.save(found, aside, title, colour)
    except OSError as error:
        raise InputError(f"Cannot write the map to {path}: {error.strerror or error}.") from None
    return path


def checked(out: str | Path) -> Path:
    """A path whose ending is known, before any work is done."""
    path = Path(out).expanduser()
    if path.suffix.lower() not in ENDINGS:
        raise InputError(
            f"A map is written to a page (.html) or a picture ({', '.join(PICTURES)}), got {str(out)!r}. "
            "Give --out a name that ends in one of these."
        )
    return path
