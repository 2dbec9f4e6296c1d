"""Embeddings of every image and caption of a collection, with a cache file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from polysem.atomic_write import replace_file
from polysem.data.collection import Collection
from polysem.data.store import FeatureStore
from polysem.errors import InputError
from polysem.models import Model, embedding
from polysem.models.embedding import collection_images, collection_texts, open_store
from polysem.progress import Progress, ignore, section

FEATURE_BATCH, SENTENCE_BATCH = 64, 128


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Sets of vectors of a collection: images (I, K, D), and texts (T, L, D) in the order of its captions. A model that
    classifies gives predictions, class probabilities: "image" (I, C) and "text" (T, C)."""

    images: Tensor
    texts: Tensor
    predictions: Mapping[str, Tensor] = field(default_factory=dict)


def embed_collection(
    model: Model,
    collection: Collection,
    *,
    features: str | Path | None = None,
    text_features: str | Path | None = None,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> Embeddings:
    """Embed a collection.

    Args:
        features, text_features: Stores of the encoders' features, as `polysem features` and `polysem train` make them.
        cache: A file to read the embeddings from if it is there, else to write them to. It is refused if it belongs to
            another model or other items.
    """
    key = _make_key(model, collection, (features, text_features))
    path = None if cache is None else Path(cache)
    if path is not None and path.exists():
        return _read(path, key)
    counts, total = (len(collection), len(collection.captions)), len(collection) + len(collection.captions)
    report, text_store = progress or ignore, open_store(text_features, model.text)
    images = collection_images(model.image.encoder, collection, open_store(features, model.image))
    texts = collection_texts(model.text.encoder, collection, text_store, by_length=True)
    text_batch = SENTENCE_BATCH if text_store is None else FEATURE_BATCH
    columns = {}
    for side, tower, items, batch, part in (
        ("image", model.image, images, FEATURE_BATCH, section(report, 0, counts[0], total)),
        ("text", model.text, texts, text_batch, section(report, *counts, total)),
    ):
        forward = embedding.embed_vectors if tower.sets.labels is None else embedding.embed_both
        columns[side] = embedding.embed(tower, items, batch, forward, progress=part)
    predictions = {side: parts[1] for side, parts in columns.items() if len(parts) > 1}
    embeddings = Embeddings(columns["image"][0], columns["text"][0], predictions)
    if path is not None:
        _write(path, embeddings, key)
    return embeddings


def _make_key(model: Model, collection: Collection, stores: Iterable[Any]) -> dict[str, str]:
    """Digests of the model, of the items and captions, and of the files, or of the feature stores instead."""
    fingerprints = [None if store is None else FeatureStore.open(store).fingerprint for store in stores]
    items, content = hashlib.sha256(), hashlib.sha256(repr(fingerprints).encode())
    for item in collection:
        items.update("\0".join([item.id, *item.captions]).encode() + b"\n")
    for path in dict.fromkeys(item.media.path for item in collection) if fingerprints[0] is None else ():
        state = path.stat() if path.exists() else None
        content.update(repr(None if state is None else (state.st_size, state.st_mtime_ns)).encode())
    digests = {"items": items.hexdigest()[:16], "features": content.hexdigest()[:16]}
    return {"fingerprint": model.fingerprint(), **digests}


def _read(path: Path, key: dict[str, str]) -> Embeddings:
    try:
        with safe_open(path, framework="pt") as file:
            known = file.metadata() or {}
            maker = known.get("fingerprint", "unknown")[:12]
            differences = {
                "fingerprint": f"were made by another model ({maker}) than this one ({key['fingerprint'][:12]})",
                "items": "are of other items or captions than these: check --data and --split",
                "features": "were made of other pictures or features: files have changed, or other stores were given",
            }
            for name, difference in differences.items():
                if known.get(name) != key[name]:
                    remedy = "Delete the file to make them again, or give another --embeddings."
                    raise InputError(f"The embeddings in {path} {difference}. {remedy}")
            held = set(file.keys()) - {"images", "texts"}
            predictions = {name.removesuffix("_classes"): file.get_tensor(name) for name in sorted(held)}
            return Embeddings(file.get_tensor("images"), file.get_tensor("texts"), predictions)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} does not hold embeddings ({error}). Give another --embeddings.") from None


def _write(path: Path, embeddings: Embeddings, key: dict[str, str]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {"images": embeddings.images, "texts": embeddings.texts}
        tensors |= {f"{side}_classes": values for side, values in embeddings.predictions.items()}
        with replace_file(path) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, metadata=key)
    except OSError as error:
        raise InputError(f"Cannot write the embeddings to {path}: {error.strerror or error}.") from None
