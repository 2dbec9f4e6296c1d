"""What the built-in data sets share: their manifest, their folder, and building their items on all cores.

Everything is made in a hidden folder inside. Only a whole set is moved out of it, its list last: without that nothing
takes the folder for a data set.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from polysem.atomic_write import hold_lock
from polysem.environment import install_command
from polysem.environment.hardware import machine
from polysem.environment.packages import installed_version
from polysem.errors import ConfigError, InputError
from polysem.progress import Progress
from polysem.synthetic.scenes.art import ATTRIBUTION, Art

MANIFEST = "manifest.json"
LICENCE = "LICENSE-art.txt"

PlanT = TypeVar("PlanT")
EntryT = TypeVar("EntryT")


@dataclass(frozen=True)
class DatasetLayout:
    """What a built-in data set consists of.

    Args:
        generator: version of the code that makes it.
        content, suffix: the folder and the ending of its files.
        lists: the files beside them, the one that makes it a data set last.
        sizes: widths in pixels that its pictures may have.
        packages: whose versions decide what it looks like.
    """

    dataset: str
    generator: int
    content: str
    suffix: str
    lists: tuple[str, ...]
    sizes: range
    most_items: int
    packages: tuple[str, ...]

    @property
    def partial(self) -> str:
        return f".{self.dataset}.partial"

    @property
    def names_in_order(self) -> tuple[str, ...]:
        return self.content, LICENCE, MANIFEST, *self.lists

    @property
    def title(self) -> str:
        return self.dataset.replace("-", " ")


def make_dataset(
    layout: DatasetLayout,
    out: Path,
    items: int,
    seed: int,
    size: int,
    build: Callable[[Path], Mapping[str, object]],
    progress: Progress,
    describe: Callable[[], Mapping[str, str]] = dict,
) -> Path:
    """Make a data set in the folder `out`, unless it already holds this very one.

    Args:
        size: width and height in pixels.
        build: writes the files into the folder it is given and returns the content of each of the lists.
        describe: gives what else belongs in the manifest; called when all packages are known to be there.
    """
    if not 1 <= items <= layout.most_items:
        raise ConfigError(f"items is {items}; expected a number from 1 to {layout.most_items}.")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; expected 0 or a positive number.")
    if size not in layout.sizes:
        even = "an even number from " if layout.sizes.step == 2 else ""
        raise ConfigError(f"size is {size} pixels; expected {even}{layout.sizes[0]} to {layout.sizes[-1]}.")
    versions = {name: installed_version(name) for name in layout.packages}
    for package, version in versions.items():
        if version is None:
            extra = {"pillow": None, "numpy": None, "av": "video"}.get(package, "offline")
            raise InputError(f"{layout.title.capitalize()} need the package {package!r}: {install_command(extra)}")
    manifest = {"dataset": layout.dataset, "generator": layout.generator, "items": items, "seed": seed, "size": size}
    manifest |= {**describe(), "packages": versions}
    if is_complete(out, manifest, layout):
        progress(f"making {layout.title.split()[-1]}", items, items)
        return out
    with write_dataset(out, manifest, layout) as partial:
        for name, content in build(partial / layout.content).items():
            _write_json(partial / name, content)
    return out


def is_complete(out: Path, manifest: Mapping[str, Any], layout: DatasetLayout) -> bool:
    """Whether `out` already holds the set the manifest describes. Another set or foreign files there are an error."""
    try:
        there = {path.name for path in out.iterdir()}
    except FileNotFoundError:
        return False
    except NotADirectoryError as error:
        raise InputError(f"{out} is, or lies in, a file. Give a new or empty folder.") from error
    except OSError as error:
        raise InputError(f"Cannot read {out}: {error.strerror or error}.") from error
    complete = layout.lists[-1] in there
    unfinished = layout.partial in there and not complete and there <= {*layout.names_in_order, layout.partial}
    if not there or unfinished:
        return False
    present: Any = None
    with suppress(OSError, ValueError):
        present = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(present, dict) or present.get("dataset") != layout.dataset or not complete:
        names = ", ".join(sorted(there)[:3])
        raise InputError(f"{out} is not empty and holds no {layout.title} ({names} …). Give a new or empty folder.")
    differences = [
        f"{key} {present.get(key)} instead of {value}" for key, value in manifest.items() if present.get(key) != value
    ]
    if differences:
        why = "; ".join(differences)
        raise InputError(f"{out} holds another set of {layout.title} ({why}). Give another folder, or delete it first.")
    files, items = len(list(out.glob(f"{layout.content}/*{layout.suffix}"))), manifest["items"]
    if files != items:
        raise InputError(f"{out} has lost {layout.content}: {files} of {items} are there. Delete it and make it again.")
    return True


@contextmanager
def write_dataset(out: Path, manifest: Mapping[str, Any], layout: DatasetLayout) -> Iterator[Path]:
    """A folder to build in; what is in it moves to `out` when the block ends well, and goes away when it does not."""
    partial = out / layout.partial
    created = not out.exists()
    try:
        partial.mkdir(parents=True, exist_ok=True)
        busy = InputError(f"Another run is writing to {out}. Wait for it, or give another folder.")
        with hold_lock(partial, busy):
            for leftover in (*(out / name for name in layout.names_in_order), *partial.iterdir()):
                if leftover.is_dir() and not leftover.is_symlink():
                    shutil.rmtree(leftover)
                else:
                    leftover.unlink(missing_ok=True)
            _write_json(partial / MANIFEST, manifest, indent=2)
            (partial / LICENCE).write_bytes(ATTRIBUTION.encode())
            (partial / layout.content).mkdir()
            try:
                yield partial
                for name in layout.names_in_order:
                    os.replace(partial / name, out / name)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise InputError(f"Cannot write to {out}: {error.strerror or error}.") from error
    finally:
        if created:
            with suppress(OSError):
                out.rmdir()  # only when nothing came of it: a folder with a set in it stays


def _write_json(path: Path, content: object, indent: int = 1) -> None:
    """The same bytes on every system."""
    path.write_bytes((json.dumps(content, ensure_ascii=False, indent=indent) + "\n").encode())


def build_entries(
    plans: Sequence[PlanT],
    build: Callable[[PlanT], EntryT],
    art: Art,
    glyphs: Iterable[str],
    stage: str,
    progress: Progress,
) -> list[EntryT]:
    """Build the item of every plan on all cores, once the colours of all `glyphs` are known; return what `build` does.

    Scaling, blurring and compressing happen outside Python's lock: threads share the drawings.
    """
    entries: list[EntryT] = []
    with ThreadPoolExecutor(machine().usable_cores) as pool:
        list(pool.map(art.colour, dict.fromkeys(glyphs)))
        try:
            for entry in pool.map(build, plans):
                entries.append(entry)
                progress(stage, len(entries), len(plans))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return entries
