"""Files that inspection writes: reports, maps and drawings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from polysem.atomic_write import replace_file
from polysem.errors import InputError

PICTURES = (".png", ".svg", ".pdf")


def check_output_path(what: str, out: str | Path, endings: Sequence[str]) -> Path:
    """The path, if its ending is known: before any work is done."""
    path = Path(out).expanduser()
    if path.suffix.lower() not in endings:
        raise InputError(f"The file of {what} must have one of the endings {', '.join(endings)}; got {str(out)!r}.")
    return path


@contextmanager
def replace_output(what: str, path: Path) -> Iterator[Path]:
    """A temporary file that becomes `path`, in a folder that is made if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as temporary:
            yield temporary
    except OSError as error:
        raise InputError(f"Cannot write {what} to {path}: {error.strerror or error}.") from None
