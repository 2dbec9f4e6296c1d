"""The feature cache: frozen encoders run once, their features are kept on disk, and every later run reads them.

A store remembers what its features were made from, so that they are not taken for those of other content.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from polysem import atomic_write, distributed
from polysem.data.collection import Collection
from polysem.data.store import FeatureStore
from polysem.encoders import Encoder, PixelEncoder, TextEncoder, caption_keys, extract, extract_texts
from polysem.environment.paths import cache_folder
from polysem.errors import ConfigError, InputError
from polysem.progress import Progress, rename_stage
from polysem.recipes import Recipe
from polysem.training.run_folder import read_json

Stores = tuple[FeatureStore | None, FeatureStore | None]
"""Of images and of captions."""

CONTENTS = "contents.json"
"""In a store: a checksum of each picture or caption."""
_CHECKED_BYTES = 4096
"""Of a picture: with its size, enough to tell it from another."""


def is_frozen(encoder: Encoder) -> bool:
    """Whether an encoder's weights never change: it gives the same features for an input at every step."""
    config = encoder.config
    return encoder.takes != "features" and config.get("trainable") == "none" and config.get("dim") is None


def cache_both_sides(
    collection: Collection,
    encoders: tuple[Encoder, Encoder],
    recipe: Recipe,
    folders: Sequence[str | Path | None],
    progress: Progress,
) -> Stores:
    """The stores of the image and the text encoder; None for one that trains or sees augmented inputs.

    Args:
        folders: where; None for the user's cache. progress: its stages are "images" and "captions".
    """
    stores: list[FeatureStore | None] = []
    sides = zip(("images", "captions"), encoders, (recipe.image, recipe.text), folders, strict=True)
    for what, encoder, side, folder in sides:
        if is_frozen(encoder) and not (side.augment.pixels or side.augment.words):
            path = None if folder is None else Path(folder)
            store = cache_features(collection, encoder, path, rename_stage(progress, what))
            distributed.barrier()  # for the shares of the other processes
            stores.append(store if distributed.world_size() == 1 else FeatureStore.open(store.folder))
        elif folder is not None:
            raise ConfigError(
                f"Features of {what} were given, but the {what[:-1]} encoder of {recipe.name} trains or sees augmented "
                "inputs: it needs the data itself. Leave the option out."
            )
        else:
            stores.append(None)
    return stores[0], stores[1]


def cache_features(collection: Collection, encoder: Encoder, folder: Path | None, progress: Progress) -> FeatureStore:
    """The store of an encoder's features of a collection; completed or made if it is not there yet.

    Args:
        folder: where; by default in the user's cache, by collection and encoder.

    Raises:
        InputError: the folder holds features of another encoder or of other content.
    """
    fingerprint = encoder.fingerprint()
    if folder is None:
        name = f"{collection.name}-{content_digest(collection, encoder.takes)}-{fingerprint[:12]}"
        folder = cache_folder() / "features" / name
    store = FeatureStore.open(folder) if (folder / "manifest.json").exists() else None
    if store is not None and store.fingerprint != fingerprint:
        raise InputError(
            f"The features in {folder} were made by another encoder ({store.manifest.encoder.get('name')}, fingerprint "
            f"{store.fingerprint[:12]}) than this recipe's ({encoder.config['name']}, {fingerprint[:12]}). "
            "Give another folder, or leave the option out: they are then made and kept in the cache."
        )
    check_contents(folder, collection, encoder.takes)
    if store is not None:
        wanted = caption_keys(collection) if encoder.takes == "tokens" else [item.id for item in collection]
        left_out = {skip.what for skip in store.skipped}
        if all(key in store or key in left_out for key in wanted):
            return store  # only read, by as many runs at once as there are
    share: dict[str, Any] = {"rank": distributed.rank(), "world_size": distributed.world_size(), "progress": progress}
    if encoder.takes == "pixels":
        store = extract(collection, cast(PixelEncoder, encoder), folder, **share)
    else:
        store = extract_texts(collection, cast(TextEncoder, encoder), folder, **share)
    if distributed.rank() == 0:
        contents = {**read_json(folder / CONTENTS), **checksums(collection, encoder.takes)}
        atomic_write.write_text(folder / CONTENTS, json.dumps(contents))
    return store


def content_digest(collection: Collection, takes: str) -> str:
    """Changes when the content does: captions for a text encoder; size and time of every picture for one of images."""
    content = hashlib.sha256()
    for item in collection:
        content.update(f"{item.id}\n".encode(errors="surrogatepass"))
        if takes == "tokens":
            content.update("\n".join(item.captions).encode(errors="surrogatepass"))
        else:
            try:
                status = item.media.path.stat()
                picture = f"{item.media.path.resolve()} {status.st_size} {status.st_mtime_ns}\n"
            except OSError:
                picture = "missing\n"
            content.update(picture.encode(errors="surrogateescape"))
    return content.hexdigest()[:12]


def check_contents(folder: Path, collection: Collection, takes: str) -> None:
    """Raise if an item was something else when the store was made. `polysem features` leaves no checksums: a store of
    its making is trusted."""
    known = read_json(folder / CONTENTS)
    if not known:
        return
    changed = [key for key, checksum in checksums(collection, takes).items() if known.get(key, checksum) != checksum]
    if changed:
        raise InputError(
            f"The features in {folder} were made when {len(changed)} of these items had another content, e.g. "
            f"{changed[0]!r}. Give another folder, or leave the option out."
        )


def checksums(collection: Collection, takes: str) -> dict[str, int]:
    """A number for each picture or caption that changes when it does."""
    if takes == "tokens":
        keys = caption_keys(collection)
        return {key: zlib.crc32(text.encode()) for key, text in zip(keys, collection.captions, strict=True)}
    numbers = {item.id: 0 for item in collection}  # 0 of a picture that is missing
    for item in collection:
        with suppress(OSError), item.media.path.open("rb") as file:
            numbers[item.id] = zlib.crc32(file.read(_CHECKED_BYTES), item.media.path.stat().st_size)
    return numbers
