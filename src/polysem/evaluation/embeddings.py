"""The sets of every image and caption of a collection, made once and, on request, kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from polysem.atomic_write import replace_file
from polysem.data.collection import Collection
from polysem.data.feature_files import load_features
from polysem.data.store import FeatureStore
from polysem.encoders import PixelEncoder
from polysem.errors import InputError
from polysem.features import LocalFeatures
from polysem.models import Model, embedding
from polysem.models.tower import Inputs, Tower

BATCH = 64
SIDES = ("image", "text")

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Embeddings:
    """images: (I, K, D); texts: (T, L, D), caption by caption in the collection's order.
    predictions: "image" (I, C) and "text" (T, C), class probabilities, of a model that classifies."""

    images: Tensor
    texts: Tensor
    predictions: Mapping[str, Tensor] = field(default_factory=dict)


def embed(
    model: Model,
    collection: Collection,
    *,
    features: str | Path | None = None,
    text_features: str | Path | None = None,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> Embeddings:
    """features, text_features: stores of the encoders' features, as `polysem features` and `polysem train` make them.
    cache: a file to read the embeddings from if it is there, else to write them to. It remembers model and items."""
    stores = [None if given is None else FeatureStore.open(given).fingerprint for given in (features, text_features)]
    key = {"fingerprint": model.fingerprint(), "items": _digest(collection), "features": _content(collection, stores)}
    path = None if cache is None else Path(cache)
    if path is not None and path.exists():
        return _read(path, key)
    total = len(collection) + len(collection.captions)
    images = _images(model.image, collection, opened_store(features, model.image), _part(progress, 0, total))
    texts = _texts(model, collection, opened_store(text_features, model.text), _part(progress, len(collection), total))
    found = _embeddings({"image": images, "text": texts})
    if path is not None:
        _write(path, found, key)
    return found


def _embeddings(sides: Mapping[str, tuple[Tensor, ...]]) -> Embeddings:
    """sides: the vectors of each and, if there are any, its class probabilities."""
    predictions = {side: found[1] for side, found in sides.items() if len(found) > 1}
    return Embeddings(sides["image"][0], sides["text"][0], predictions)


def _images(
    tower: Tower, collection: Collection, store: FeatureStore | None, progress: Progress | None
) -> tuple[Tensor, ...]:
    if store is not None:
        places = store.positions([item.id for item in collection])
        return _run(tower, len(collection), lambda rows: store.batch(places[rows]), progress)
    if all(item.media.is_features for item in collection):

        def arrays(rows: np.ndarray) -> Inputs:
            given = [np.array(load_features(collection[row].media), np.float32) for row in rows.tolist()]
            return LocalFeatures.from_list([torch.from_numpy(each) for each in given])

        return _run(tower, len(collection), arrays, progress)
    if tower.encoder.takes == "features":
        raise InputError(
            f"This model reads features of width {tower.encoder.config.get('input_dim')}, and {collection.name} "
            f"holds {collection.content}. Extract the features it was trained on with `polysem features`, and give "
            "--features."
        )
    reader = cast(PixelEncoder, tower.encoder)
    with ThreadPoolExecutor(max(2, torch.get_num_threads()), thread_name_prefix="pictures") as readers:

        def pixels(rows: np.ndarray) -> Inputs:
            paths = [collection[row].media.path for row in rows.tolist()]
            return torch.stack(list(readers.map(reader.read, paths)))

        return _run(tower, len(collection), pixels, progress, max(1, BATCH // reader.pictures_per_item))


def _texts(
    model: Model, collection: Collection, store: FeatureStore | None, progress: Progress | None
) -> tuple[Tensor, ...]:
    if store is None:
        return embedding.read_texts(model.text, collection.captions, progress=progress, read=_reading(model.text))
    keys = [f"{item.id}#{number}" for item in collection for number in range(len(item.captions))]
    places = store.positions(keys)
    return _run(model.text, len(keys), lambda rows: store.batch(places[rows]), progress)


def _reading(tower: Tower) -> embedding.Reading:
    return embedding.vectors if tower.sets.labels is None else embedding.vectors_and_probabilities


def _run(
    tower: Tower, count: int, load: Callable[[np.ndarray], Inputs], progress: Progress | None, batch: int = BATCH
) -> tuple[Tensor, ...]:
    return embedding.run(tower, count, lambda rows: load(np.array(rows)), batch, progress, _reading(tower))


def opened_store(folder: str | Path | None, tower: Tower) -> FeatureStore | None:
    if folder is None:
        return None
    store = FeatureStore.open(folder)
    expected = tower.encoder.fingerprint()
    if tower.encoder.takes != "features" and store.fingerprint != expected:
        raise InputError(
            f"The features in {folder} were made by another encoder (fingerprint {store.fingerprint[:12]}) than this "
            f"model's ({tower.encoder.config['name']}, {expected[:12]}). Leave the option out, or extract them again."
        )
    return store


def _part(progress: Progress | None, first: int, total: int) -> Progress | None:
    return None if progress is None else lambda done, _: progress(first + done, total)


def _digest(collection: Collection) -> str:
    found = hashlib.sha256()
    for item in collection:
        found.update("\0".join([item.id, *item.captions]).encode() + b"\n")
    return found.hexdigest()[:16]


def _content(collection: Collection, stores: list[str | None]) -> str:
    """Changes when a file or a store does."""
    found = hashlib.sha256(repr(stores).encode())
    if stores[0] is None:
        for path in dict.fromkeys(item.media.path for item in collection):
            state = path.stat() if path.exists() else None
            found.update(repr(None if state is None else (state.st_size, state.st_mtime_ns)).encode())
    return found.hexdigest()[:16]


def _read(path: Path, key: dict[str, str]) -> Embeddings:
    try:
        with safe_open(path, framework="pt") as file:
            known = file.metadata() or {}
            if known.get("fingerprint") != key["fingerprint"]:
                raise InputError(
                    f"The embeddings in {path} were made by another model (fingerprint "
                    f"{known.get('fingerprint', 'unknown')[:12]}) than this one ({key['fingerprint'][:12]}). "
                    "Delete the file to make them anew, or give another --embeddings."
                )
            if known.get("items") != key["items"]:
                raise InputError(
                    f"The embeddings in {path} are of other items or captions than these. Check --data and --split, or "
                    "give another --embeddings."
                )
            if known.get("features") != key["features"]:
                raise InputError(
                    f"The embeddings in {path} were made of other pictures or features: files have changed, or a "
                    "feature store is given now and was not then. Delete the file to make them anew."
                )
            held = set(file.keys())
            predictions = {side: file.get_tensor(f"{side}_classes") for side in SIDES if f"{side}_classes" in held}
            return Embeddings(file.get_tensor("images"), file.get_tensor("texts"), predictions)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} is no file of embeddings ({error}). Give another --embeddings.") from None


def _write(path: Path, found: Embeddings, key: dict[str, str]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {"images": found.images, "texts": found.texts}
        tensors |= {f"{side}_classes": held for side, held in found.predictions.items()}
        with replace_file(path) as aside:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, aside, metadata=key)
    except OSError as error:
        raise InputError(f"Cannot write the embeddings to {path}: {error.strerror or error}.") from None
