"""From items to vectors: the one path by which validation, evaluation, search and inspection embed what they are given.

`items` says what there is and how it is loaded, `embed` runs it through a tower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from polysem import cpu_blocks
from polysem.encoders.base import eval_mode
from polysem.encoders.pipeline import encode_windows, windows
from polysem.errors import InputError
from polysem.models.items import ImageItems, Items
from polysem.models.tower import Inputs, Tower
from polysem.progress import Progress

ModelOutput = Tensor | list[Any]
Forward = Callable[[Tower, Inputs], tuple[ModelOutput, ...]]
"""What to compute of a batch: tensors or lists with a row for each item."""


def embed_vectors(tower: Tower, inputs: Inputs) -> tuple[Tensor]:
    """(B, K, D): the items' sets."""
    return (tower(inputs).vectors,)


def embed_probabilities(tower: Tower, inputs: Inputs) -> tuple[Tensor, ...]:
    """(B, C): how probable each class is."""
    return embed_both(tower, inputs)[1:]


def embed_both(tower: Tower, inputs: Inputs) -> tuple[Tensor, ...]:
    """(B, K, D) and (B, C), in one pass."""
    prediction = tower(inputs)
    if prediction.logits is None:
        name = tower.sets.config["name"]
        raise InputError(f"{name!r} knows no classes. Train a model that does: `polysem train small-semantic-sharing`.")
    return prediction.vectors, tower.sets.probabilities(prediction.logits)


def embed(
    tower: Tower,
    items: Items[Any],
    batch_size: int,
    forward: Forward = embed_vectors,
    *,
    block: int | None = None,
    progress: Progress | None = None,
    on_skip: Callable[[int, InputError], None] | None = None,
) -> tuple[Any, ...]:
    """Embed items in batches, in evaluation mode and without gradients.

    Args:
        batch_size: images, features or texts in memory together; videos are fewer by the frames they have.
        forward: what to compute of a batch.
        block: cut batches of pixels into blocks of so many and encode each on a thread, on the CPU.
        progress: called with "encoding", the items that are done, and all of them.
        on_skip: called with the row of an item that cannot be read, and the reason; without it, that is an error.

    Returns:
        What `forward` gives, on the CPU, with a row for each item that was not skipped, in the items' order. Nothing if
        all were skipped.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}.")
    device = next(tower.parameters()).device
    count, size = len(items), max(1, batch_size // items.images_per_item)
    if not isinstance(items, ImageItems) or device.type != "cpu":
        block = None
    columns: list[Any] = []
    kept = torch.ones(count, dtype=torch.bool)
    done = 0

    def run(_: list[int], loaded: list[Any]) -> tuple[Any, ...]:
        return _forward(tower, items.collate(loaded).to(device), forward)

    with eval_mode(tower), items.readers() as readers:
        for rows, result in encode_windows(
            windows(items.order, size),
            items.load,
            run,
            block or size,
            group=items.group,
            readers=readers,
            encoders=cpu_blocks.shared_pool(device) if block else None,
        ):
            if isinstance(result, InputError):
                if on_skip is None:
                    raise result
                on_skip(rows[0], result)
                kept[rows] = False
            else:
                # Made here, not in `run`: tensors made in inference mode cannot take part in training.
                columns = columns or [
                    torch.empty(count, *p.shape[1:]) if isinstance(p, Tensor) else [None] * count for p in result
                ]
                for column, part in zip(columns, result, strict=True):
                    if isinstance(column, Tensor):
                        column[rows] = part
                        continue
                    for row, value in zip(rows, part, strict=True):
                        column[row] = value
            done += len(rows)
            if progress is not None:
                progress("encoding", done, count)
    if bool(kept.all()):
        return tuple(columns)
    rows = kept.nonzero().flatten().tolist()
    return tuple(c[rows] if isinstance(c, Tensor) else [c[row] for row in rows] for c in columns)


def embed_batch(tower: Tower, inputs: Inputs, forward: Forward = embed_vectors) -> tuple[Any, ...]:
    """What `forward` gives of one batch of a tower's inputs, on the CPU, in evaluation mode and without gradients."""
    with eval_mode(tower):
        return _forward(tower, inputs.to(next(tower.parameters()).device), forward)


def _forward(tower: Tower, inputs: Inputs, forward: Forward) -> tuple[ModelOutput, ...]:
    with torch.inference_mode():
        columns = forward(tower, inputs)
        return tuple(column.float().cpu() if isinstance(column, Tensor) else column for column in columns)
