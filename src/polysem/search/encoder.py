"""The model of an index: its manifest, and queries encoded by that model and no other."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from polysem.errors import InputError, PolysemError, kind
from polysem.models import Model, load
from polysem.search.store import Manifest, SearchError
from polysem.search.store.entries import Dtype
from polysem.similarity import registry

_ROUNDING = 1e-5


def make_manifest(model: Model, source: str = "", dtype: Dtype = "float32") -> Manifest:
    """The manifest of an index of this model's vectors. source: where the model can be loaded from."""
    similarity, preprocessing = dict(model.similarity.config), {}
    for name, value in model.similarity.state_dict().items():  # the values it has learned
        if name in similarity and value.numel() == 1:
            similarity[name] = float(value)
    for side, encoder in (("image", model.image.encoder), ("text", model.text.encoder)):
        # For people to read: the fingerprint covers all of it.
        unimportant = {*encoder.without_effect, "backbone_config"}
        preprocessing[side] = {name: value for name, value in encoder.config.items() if name not in unimportant}
    sets = dict(zip(("image", "text"), model.set_sizes, strict=True))
    return Manifest(model.fingerprint(), sets, model.dim, similarity, preprocessing, source, dtype)


def normalise_sets(vectors: NDArray[np.float32], similarity: Mapping[str, Any]) -> NDArray[np.float32]:
    """A model's vectors as an index stores them: normalised where the similarity is the cosine, which ignores length.

    Label-wise models as released do not normalise, and the engine needs unit vectors. Other similarities read length.
    """
    if not registry.find(similarity["name"]).normalises:
        return vectors
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    other = (norms > 0) & (np.abs(norms - 1) > _ROUNDING)  # what is 1 already stays bit for bit
    return np.where(other, vectors / np.where(other, norms, 1), vectors)


class QueryEncoder:
    """Queries to sets, by the model that the manifest names or by one that is given; another one is refused."""

    def __init__(self, manifest: Manifest, given: Model | str | Path | None = None) -> None:
        self._manifest, self._given = manifest, given
        self._guard = threading.Lock()
        self._model: Model | None = None

    @property
    def model(self) -> Model:
        with self._guard:
            if self._model is None:
                self._model = self._load()
            return self._model

    def _load(self) -> Model:
        source = self._given or self._manifest.model
        if not source:
            raise SearchError("The index does not say where its model is. Give its folder with --model or model=.")
        wanted = self._manifest.fingerprint
        try:
            model = source.eval() if isinstance(source, Model) else load(source)
        except PolysemError as error:
            moved = f"If it was moved, give its folder with --model; its fingerprint is {wanted[:12]}."
            raise SearchError(f"The model of this index cannot be loaded from {source}: {error} {moved}") from None
        if model.fingerprint() != wanted:
            raise SearchError(
                f"The index was made with another model, {self._manifest.model or 'unnamed'} ({wanted[:12]}); "
                f"this has {model.fingerprint()[:12]}. Use the index's own model, or make another index: "
                "`polysem index COLLECTION --model THIS --out NEW`."
            )
        return model

    def encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(Q, L, D)."""
        for text in texts:
            if not isinstance(text, str):
                raise InputError(f"A query is a text, got {kind(text)}.")
            if not text.strip():
                raise InputError("The query is empty. Say in words what to look for.")
        vectors: NDArray[np.float32] = self.model.encode_texts(list(texts)).numpy()
        return normalise_sets(vectors, self._manifest.similarity)

    def encode_image(self, image: str | Path | Image.Image | NDArray[Any]) -> NDArray[np.float32]:
        """(K, D). A picture, or its features where the model reads those."""
        model = self.model
        if model.image.encoder.takes == "features" and isinstance(image, (str, Path)):
            if not str(image).endswith(".npy"):
                width = model.image.encoder.config.get("input_dim")
                remedy = "give a .npy file of them, or search from an item of the index by its id (--item)"
                raise InputError(f"This model reads features of width {width}, not pictures: {remedy}.")
            try:
                with open(image, "rb") as file:
                    image = np.lib.format.read_array(file, allow_pickle=False)
            except Exception as error:  # a damaged header raises almost anything
                raise InputError(f"{image}: not a readable .npy array of features ({error}).") from None
        return normalise_sets(model.encode_images([image])[0].numpy(), self._manifest.similarity)
