"""Two towers and a similarity: what training trains, and what a model folder holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from polysem.encoders.base import Encoder, hash_state
from polysem.errors import InputError, kind
from polysem.models import folder
from polysem.models.embedding import embed, embed_probabilities, image_items, text_items
from polysem.models.tower import Inputs, TokenMask, Tower
from polysem.progress import Progress
from polysem.registry import Part
from polysem.sets import SetPrediction
from polysem.similarity import Similarity

WITHOUT_EFFECT = frozenset({"dropout", "budget_mb", "logit_scale", "logit_bias"})


class Model(nn.Module):
    """Images and texts to sets of unit vectors, and sets to scores.

    `encode_images` and `encode_texts` give (items, K, dim) sets; `similarity(images, texts)` scores every pair.
    provenance: what is known of its making (recipe, data, validation); saved with it, without effect on it.

    Example:
        >>> import numpy as np
        >>> from polysem.models import build
        >>> image = {"encoder": {"name": "region", "input_dim": 16}, "sets": {"name": "single", "pooling": "mean"}}
        >>> text = {"encoder": {"name": "bigru", "vocab_size": 9}, "sets": {"name": "single", "pooling": "mean"}}
        >>> model = build(8, image, text, {"name": "cosine"}).eval()
        >>> regions = [np.ones((5, 16), np.float32), np.zeros((3, 16), np.float32)]
        >>> images, texts = model.encode_images(regions), model.encode_texts([[1, 4, 2], [1, 5, 6, 2]])
        >>> tuple(images.shape), tuple(model.similarity(images, texts).shape)
        ((2, 1, 8), (2, 2))
    """

    def __init__(self, dim: int, image: Tower, text: Tower, similarity: Similarity) -> None:
        super().__init__()
        self.dim, self.image, self.text, self.similarity = dim, image, text, similarity
        self.provenance: dict[str, Any] = {}

    @property
    def config(self) -> dict[str, Any]:
        """JSON-able; `models.build(**config)` makes an untrained twin."""
        text = self.text.config
        if self.text.sets is self.image.sets:
            text["sets"] = "shared"
        return {"dim": self.dim, "image": self.image.config, "text": text, "similarity": self.similarity.config}

    @property
    def set_sizes(self) -> tuple[int, int]:
        """Vectors per image and per text."""
        return self.image.sets.k, self.text.sets.k

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the classes, of a model that classifies both sides."""
        return self.image.sets.labels if self.image.sets.labels == self.text.sets.labels else None

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def forward(
        self,
        images: Inputs,
        texts: Inputs,
        keep: tuple[Tensor | None, Tensor | None] = (None, None),
        masks: tuple[TokenMask | None, TokenMask | None] = (None, None),
    ) -> tuple[SetPrediction, SetPrediction]:
        return self.image(images, keep[0], masks[0]), self.text(texts, keep[1], masks[1])

    def encode(
        self,
        inputs: Any,
        *,
        batch_size: int = 32,
        show_progress_bar: bool = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
    ) -> NDArray[np.float32] | Tensor:
        """Texts and images, in one list and in its order, as sentence-transformers' `encode` takes them.

        A `str` is a text; a PIL image, a `Path` or, for a model that takes features, a (tokens, dim) array is an image.
        A list gives (items, K, dim), a single item (K, dim): every vector already has length 1, and
        `model.similarity(a, b)` compares what comes out, arrays or tensors.
        """
        from rich.console import Console
        from rich.progress import Progress as Bar

        is_array = isinstance(inputs, (np.ndarray, Tensor))
        single = isinstance(inputs, (str, Path, Image.Image)) or (is_array and inputs.ndim == 2)
        if not single and not is_array and not isinstance(inputs, Sequence):
            raise InputError(f"encode() takes a text, an image or a list of them, got {kind(inputs)}.")
        items = [inputs] if single else list(inputs)
        if not items:
            raise InputError("encode() got an empty list; give at least one text or image.")
        texts = [row for row, item in enumerate(items) if isinstance(item, str)]
        images = [row for row, item in enumerate(items) if not isinstance(item, str)]
        for row in texts:
            # Words never end like this, and a file name's embedding would be a quiet mistake.
            path = Path(items[row])
            if path.suffix.lower() in Image.registered_extensions() and path.is_file():
                raise InputError(
                    f"Item number {row} is the text {items[row]!r}, and there is an image of that name. encode() takes "
                    f"every str for a text: write Path({items[row]!r}) for the image, or use encode_images()."
                )
        if texts and images and self.set_sizes[0] != self.set_sizes[1]:
            raise InputError(
                "This model gives an image {} vectors and a text {}, which fit into no common array. "
                "Encode images and texts in two calls.".format(*self.set_sizes)
            )
        vectors = torch.empty(len(items), self.set_sizes[0 if images else 1], self.dim)
        with Bar(console=Console(stderr=True), disable=not show_progress_bar) as bar:
            task = bar.add_task("Encoding", total=len(items))
            for rows, encode, first in ((texts, self.encode_texts, 0), (images, self.encode_images, len(texts))):

                def advance(_: str, done: int, __: int, first: int = first) -> None:
                    bar.update(task, completed=first + done)

                if rows:
                    vectors[rows] = encode([items[row] for row in rows], batch_size=batch_size, progress=advance)
        vectors = vectors[0] if single else vectors
        return vectors if convert_to_tensor or not convert_to_numpy else vectors.numpy()

    def encode_images(self, images: Any, *, batch_size: int = 32, progress: Progress | None = None) -> Tensor:
        """Embed images: (items, K, dim) on the CPU, in the order given. An image's set does not depend on the others.

        Args:
            images: paths or PIL images, where the encoder takes pixels; (tokens, dim) arrays or `LocalFeatures` where
                it takes features. Features of the encoder's own making are accepted by both.
            batch_size: images in memory together.
            progress: called with "encoding", the images that are done, and all of them.
        """
        items = image_items(self.image.encoder, images)
        return cast(Tensor, embed(self.image, items, batch_size, progress=progress)[0])

    def encode_texts(self, texts: Any, *, batch_size: int = 128, progress: Progress | None = None) -> Tensor:
        """Embed texts: (texts, K, dim) on the CPU, in the order given.

        Args:
            texts: sentences, `Tokens`, or lists of token ids.
            batch_size: texts encoded together; those of like length are.
            progress: called with "encoding", the texts that are done, and all of them.
        """
        items = text_items(self.text.encoder, texts)
        return cast(Tensor, embed(self.text, items, batch_size, progress=progress)[0])

    def classify_images(self, images: Any, *, batch_size: int = 32, progress: Progress | None = None) -> Tensor:
        """(items, classes): how probable each of `labels` is. images: as `encode_images` takes them."""
        items = image_items(self.image.encoder, images)
        return cast(Tensor, embed(self.image, items, batch_size, embed_probabilities, progress=progress)[0])

    def classify_texts(self, texts: Any, *, batch_size: int = 128, progress: Progress | None = None) -> Tensor:
        """(texts, classes): how probable each of `labels` is. texts: as `encode_texts` takes them."""
        items = text_items(self.text.encoder, texts)
        return cast(Tensor, embed(self.text, items, batch_size, embed_probabilities, progress=progress)[0])

    def fingerprint(self) -> str:
        """sha256 of all that decides an embedding: weights, knobs and preprocessing of both towers, and the similarity.

        The same in every process and after saving and loading; another as soon as one weight changes.
        """
        parts = {}
        for name, part in self.parts().items():
            if isinstance(part, Encoder):
                parts[name] = part.fingerprint()
            else:
                knobs = {knob: value for knob, value in part.original_knobs().items() if knob not in WITHOUT_EFFECT}
                parts[name] = hash_state(knobs, part.state_dict())
        reads = {"image": self.image.reads, "text": self.text.reads}
        return hash_state({"dim": self.dim, "local": reads, "parts": parts}, {})

    def parts(self) -> dict[str, Part]:
        """Every part by its place, such as "image.encoder"."""
        found: dict[str, Part] = {"similarity": self.similarity}
        for side, tower in (("image", self.image), ("text", self.text)):
            for name in ("encoder", "project", "pool", "sets"):
                part = getattr(tower, name)
                if part is not None:
                    found[f"{side}.{name}"] = part
        return found

    def save(self, path: str | Path, card: Mapping[str, Any] | None = None, small: bool = False) -> Path:
        """Write the model folder: config.json, model.safetensors, preprocessing and a model card (README.md).

        Other files in the folder stay. `polysem.load(path)` reads it back. card: entries to add to the card's header.
        A frozen backbone that the catalogue knows by its probe (dinov2-small) is left out and remembered by name.
        small: weights are rounded to float16, and those that a weights package has anyway are left out: it must be
        installed where the model is loaded. What is saved is the rounded model, with a fingerprint of its own.
        """
        return folder.save(self, Path(path), card or {}, small)
