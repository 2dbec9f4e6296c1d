"""Frozen encoders run once: their features are kept on disk and every later run reads them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import cast

from polysem.data.collection import Collection
from polysem.data.store import FeatureStore
from polysem.encoders import Encoder, PixelEncoder, TextEncoder, caption_keys, extract, extract_texts
from polysem.environment.paths import cache_folder
from polysem.errors import InputError
from polysem.progress import Progress
from polysem.recipes import Side
from polysem.training import feature_cache_key


def is_frozen(encoder: Encoder, side: Side) -> bool:
    """Whether this encoder gives the same features for an input at every step."""
    untouched = (
        encoder.takes != "features" and encoder.config.get("trainable") == "none" and encoder.config.get("dim") is None
    )
    return untouched and not (side.augment.pixels or side.augment.words)


def features_of(
    collection: Collection,
    encoder: Encoder,
    folder: Path | None,
    progress: Progress,
    rank: int = 0,
    world_size: int = 1,
) -> FeatureStore:
    """The store of this encoder's features of a collection; completed or made if it is not there yet.

    folder: where; by default in the user's cache, by collection and encoder.
    """
    print_ = encoder.fingerprint()
    if folder is None:
        folder = cache_folder() / "features" / f"{collection.name}-{digest(collection, encoder)}-{print_[:12]}"
    elif (folder / "manifest.json").exists():
        found = FeatureStore.open(folder)
        if found.fingerprint != print_:
            raise InputError(
                f"The features in {folder} were made by another encoder ({found.manifest.encoder.get('name')}, "
                f"fingerprint {found.fingerprint[:12]}) than this recipe's ({encoder.config['name']}, {print_[:12]}). "
                "Give another folder, or leave the option out: they are then made and kept in the cache."
            )
    feature_cache_key.check(folder, collection, encoder.takes)
    complete = _complete(folder, collection, encoder)
    if complete is not None:
        return complete
    if encoder.takes == "pixels":
        store = extract(
            collection, cast(PixelEncoder, encoder), folder, rank=rank, world_size=world_size, progress=progress
        )
    else:
        store = extract_texts(
            collection, cast(TextEncoder, encoder), folder, rank=rank, world_size=world_size, progress=progress
        )
    if rank == 0:
        feature_cache_key.note(folder, collection, encoder.takes)
    return store


def _complete(folder: Path, collection: Collection, encoder: Encoder) -> FeatureStore | None:
    """The store, if nothing is left to do: it is then only read, by as many runs at once as there are."""
    if not (folder / "manifest.json").exists():
        return None
    store = FeatureStore.open(folder)
    wanted = caption_keys(collection) if encoder.takes == "tokens" else [item.id for item in collection]
    left_out = {skip.what for skip in store.skipped}
    done = store.fingerprint == encoder.fingerprint() and all(key in store or key in left_out for key in wanted)
    return store if done else None


def digest(collection: Collection, encoder: Encoder) -> str:
    """Changes when the content does: captions for a text encoder; size and time of every picture for one of images."""
    found = hashlib.sha256()
    for item in collection:
        found.update(f"{item.id}\n".encode())
        if encoder.takes == "tokens":
            found.update("\n".join(item.captions).encode())
        else:
            try:
                status = item.media.path.stat()
                found.update(f"{item.media.path.resolve()} {status.st_size} {status.st_mtime_ns}\n".encode())
            except OSError:
                found.update(b"missing\n")
    return found.hexdigest()[:12]
