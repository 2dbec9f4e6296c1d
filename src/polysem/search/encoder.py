"""The model of an index: its manifest, and queries encoded by that model and no other."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from polysem.encoders.base import Encoder
from polysem.errors import InputError, PolysemError, kind
from polysem.models import Model, load
from polysem.search.store import Manifest, SearchError
from polysem.search.store.entries import Dtype
from polysem.similarity import registry

_ROUNDING = 1e-5


def make_manifest(model: Model, source: str = "", dtype: Dtype = "float32") -> Manifest:
    """The manifest of an index of this model's vectors. source: where the model can be loaded from."""
    images, texts = model.set_sizes
    return Manifest(
        fingerprint=model.fingerprint(),
        sets={"image": images, "text": texts},
        dim=model.dim,
        similarity=_similarity_config(model),
        preprocessing={"image": _preprocessing(model.image.encoder), "text": _preprocessing(model.text.encoder)},
        model=source,
        dtype=dtype,
    )


def _preprocessing(encoder: Encoder) -> dict[str, Any]:
    """An encoder's config, for people to read; the fingerprint covers all of it."""
    unimportant = {*encoder.without_effect, "backbone_config"}
    return {name: value for name, value in encoder.config.items() if name not in unimportant}


def _similarity_config(model: Model) -> dict[str, Any]:
    """The similarity's config, with the learned values of those it trains."""
    knobs = dict(model.similarity.config)
    state = model.similarity.state_dict()
    return knobs | {name: float(value) for name, value in state.items() if name in knobs and value.numel() == 1}


def _load_features(path: Path) -> NDArray[Any]:
    try:
        with path.open("rb") as file:
            features: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        return features
    except Exception as error:  # a damaged header raises almost anything
        raise InputError(f"{path}: not a readable .npy array of features ({error}).") from None


def normalise_sets(vectors: NDArray[np.float32], similarity: Mapping[str, Any]) -> NDArray[np.float32]:
    """A model's vectors as an index stores them: normalised where the similarity is the cosine, which ignores length.

    Label-wise models as released do not normalise, and the engine needs unit vectors. For other similarities length
    matters, and is left.
    """
    if not registry.find(similarity["name"]).normalises:
        return vectors
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    other = (norms > 0) & (np.abs(norms - 1) > _ROUNDING)  # what is 1 already stays bit for bit
    units: NDArray[np.float32] = np.where(other, vectors / np.where(other, norms, 1), vectors)
    return units


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
        if isinstance(source, Model):
            model = source.eval()
        elif not source:
            raise SearchError(
                "The index does not say where its model is. Give it: `--model FOLDER`, or `Index.open(…, model=…)`."
            )
        else:
            try:
                model = load(source)
            except PolysemError as error:
                raise SearchError(
                    f"The model of this index cannot be loaded from {source}: {error} If it was moved, give its folder "
                    f"with --model; its fingerprint is {self._manifest.fingerprint[:12]}."
                ) from None
        if model.fingerprint() != self._manifest.fingerprint:
            raise SearchError(
                f"The index was made with another model: {self._manifest.model or 'unnamed'}, fingerprint "
                f"{self._manifest.fingerprint[:12]}; this one has {model.fingerprint()[:12]}, and their vectors cannot "
                "be compared. Use the index's own model, or make a new index with this one: `polysem index COLLECTION "
                "--model THIS --out NEW`."
            )
        return model

    def text(self, text: str) -> NDArray[np.float32]:
        """(L, D)."""
        only: NDArray[np.float32] = self.texts([text])[0]
        return only

    def texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(Q, L, D)."""
        for text in texts:
            if not isinstance(text, str):
                raise InputError(f"A query is a text, got {kind(text)}.")
            if not text.strip():
                raise InputError("The query is empty. Say in words what to look for.")
        vectors: NDArray[np.float32] = self.model.encode_texts(list(texts)).numpy()
        return normalise_sets(vectors, self._manifest.similarity)

    def image(self, image: str | Path | Image.Image | NDArray[Any]) -> NDArray[np.float32]:
        """(K, D). A picture, or its features where the model reads those."""
        model = self.model
        if model.image.encoder.takes == "features" and isinstance(image, (str, Path)):
            if not str(image).endswith(".npy"):
                raise InputError(
                    f"This model reads features of width {model.image.encoder.config.get('input_dim')}, not pictures: "
                    "give a .npy file of them, or search from an item of the index by its id (--item)."
                )
            image = _load_features(Path(image))
        return normalise_sets(model.encode_images([image])[0].numpy(), self._manifest.similarity)
