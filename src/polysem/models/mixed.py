"""Texts and images in one list, as sentence-transformers' `encode` takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polysem.errors import InputError, kind

if TYPE_CHECKING:
    from polysem.models.model import Model

Progress = Callable[[int, int], None]


def encode(model: Model, inputs: Any, batch_size: int, show_progress_bar: bool) -> Tensor:
    """(items, K, dim) in the order given; (K, dim) of a single item."""
    single = isinstance(inputs, (str, Path, Image.Image)) or (_is_array(inputs) and inputs.ndim == 2)
    items = [inputs] if single else _listed(inputs)
    texts = [place for place, item in enumerate(items) if _is_text(item, place)]
    images = [place for place, item in enumerate(items) if not isinstance(item, str)]
    if not items:
        raise InputError("encode() got an empty list; give at least one text or image.")
    if texts and images and model.set_sizes[0] != model.set_sizes[1]:
        raise InputError(
            "This model gives an image {} vectors and a text {}, which fit into no common array. "
            "Encode images and texts in two calls.".format(*model.set_sizes)
        )
    found = torch.empty(len(items), model.set_sizes[0 if images else 1], model.dim)
    with _bar(len(items), show_progress_bar) as advance:
        if texts:
            given = [items[place] for place in texts]
            found[texts] = model.encode_texts(given, batch_size=batch_size, progress=lambda done, _: advance(done))
        if images:
            given = [items[place] for place in images]
            found[images] = model.encode_images(
                given, batch_size=batch_size, progress=lambda done, _: advance(len(texts) + done)
            )
    return found[0] if single else found


def _is_array(item: Any) -> bool:
    return isinstance(item, (np.ndarray, Tensor))


def _listed(inputs: Any) -> Sequence[Any]:
    if isinstance(inputs, (Sequence, np.ndarray, Tensor)):
        return list(inputs)
    raise InputError(f"encode() takes a text, a picture or a list of them, got {kind(inputs)}.")


def _is_text(item: Any, place: int) -> bool:
    if not isinstance(item, str):
        return False
    # Words never end like this, and a file name's embedding would be a quiet mistake.
    if Path(item).suffix.lower() in Image.registered_extensions() and Path(item).is_file():
        raise InputError(
            f"Item number {place} is the text {item!r}, and there is a picture of that name. encode() takes every str "
            f"for a text: write Path({item!r}) for the picture, or use encode_images()."
        )
    return True


@contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task("Encoding", total=total)
        yield lambda done: bar.update(task, completed=done)
