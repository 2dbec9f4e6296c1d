"""The model of an index: which one it is, loaded when first needed, and never another."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from polysem.encoders.base import Encoder
from polysem.errors import InputError, PolysemError, kind
from polysem.models import Model, load
from polysem.search.store import Manifest, SearchError
from polysem.search.store.manifest import Dtype
from polysem.search.vector_checks import as_units


def manifest_of(model: Model, source: str = "", dtype: Dtype = "float32") -> Manifest:
    """What an index says about the vectors that this model makes. source: where the model can be loaded from."""
    images, texts = model.set_sizes
    return Manifest(
        fingerprint=model.fingerprint(),
        sets={"image": images, "text": texts},
        dim=model.dim,
        similarity=_learned(model),
        preprocessing={"image": _knobs(model.image.encoder), "text": _knobs(model.text.encoder)},
        model=source,
        dtype=dtype,
    )


def _knobs(encoder: Encoder) -> dict[str, Any]:
    """What an encoder does to its input, for people to read; the fingerprint covers all of it."""
    unimportant = {*encoder.without_effect, "backbone_config"}
    return {name: value for name, value in encoder.config.items() if name not in unimportant}


def _learned(model: Model) -> dict[str, Any]:
    """The similarity's knobs, with what training made of those it learns."""
    knobs = dict(model.similarity.config)
    state = model.similarity.state_dict()
    return knobs | {name: float(value) for name, value in state.items() if name in knobs and value.numel() == 1}


def _features(path: Path) -> NDArray[Any]:
    try:
        with path.open("rb") as file:
            found: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        return found
    except Exception as error:  # a damaged header raises almost anything
        raise InputError(f"{path}: not a readable .npy array of features ({error}).") from None


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
                self._model = self._found()
            return self._model

    def _found(self) -> Model:
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
                    f"The model of this index cannot be loaded from {source}: {error} If it was moved, give its place "
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
        if not isinstance(text, str):
            raise InputError(f"A query is a text, got {kind(text)}.")
        if not text.strip():
            raise InputError("The query is empty. Say in words what to look for.")
        return as_units(self.model.encode_texts([text])[0].numpy(), self._manifest.similarity)

    def image(self, image: str | Path | Image.Image | NDArray[Any]) -> NDArray[np.float32]:
        """(K, D). A picture, or its features where the model reads those."""
        model = self.model
        if model.image.encoder.takes == "features" and isinstance(image, (str, Path)):
            if not str(image).endswith(".npy"):
                raise InputError(
                    f"This model reads features of width {model.image.encoder.config.get('input_dim')}, not pictures: "
                    "give a .npy file of them, or search from an item of the index by its id (--item)."
                )
            image = _features(Path(image))
        return as_units(model.encode_images([image])[0].numpy(), self._manifest.similarity)
