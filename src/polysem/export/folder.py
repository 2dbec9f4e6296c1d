"""A folder that appears whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polysem.export import description
from polysem.export.tracing import ExportError


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """A folder beside `out` to write into; it takes its place at the end, and is gone after an error.

    An earlier export there is replaced; a folder with anything else in it is refused.
    """
    if out.exists() and not _replaceable(out):
        raise ExportError(f"{out} exists and is no export of polysem's. Give a folder that does not exist yet.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise ExportError(f"Cannot write to {out.parent}: {error.strerror or error}.") from None
    try:
        new, old = aside / "new", aside / "old"
        new.mkdir()
        yield new
        if out.exists():
            out.rename(old)
        new.rename(out)
    except OSError as error:
        raise ExportError(f"Cannot write the export to {out}: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _replaceable(out: Path) -> bool:
    return out.is_dir() and ((out / description.FILE).is_file() or not any(out.iterdir()))
