"""Readers: one file for each layout of data, and `open_collection`, which tells the layouts apart.

A new layout is one new file in this folder: a function decorated with `register_reader`. It is found by itself.
"""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any

from polysem.data.collection import Collection, DataError, Problems
from polysem.data.readers.base import READERS, DataLocation, register_reader
from polysem.errors import unknown
from polysem.plugins import load_plugins

__all__ = ["open_collection", "register_reader"]

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def open_collection(path: str | Path, problems: Problems | None = None, **options: Any) -> Collection:
    """Open the data set at `path`, whatever its layout.

    Args:
        path: a folder, or the file that describes the data set.
        problems: collects what is wrong instead of raising the first error, if it is not strict.
        **options: of the reader that recognises the layout, such as `images=…`: the folder of the pictures, or
            `repair_bytes=True`: decode captions that are printed bytes objects.

    Raises:
        DataError: if nothing can be read there.

    Example:
        >>> from PIL import Image
        >>> from polysem.data import open_collection
        >>> Image.new("RGB", (8, 8), "red").save("apple.png")
        >>> _ = Path("captions.csv").write_text("image,caption,labels\\napple.png,A red apple.,fruit; red\\n")
        >>> collection = open_collection(".")
        >>> collection[0].id, collection.captions, collection.label_names
        ('apple.png', ['A red apple.'], ['fruit', 'red'])
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise DataError(f"{path}: no such file or folder.")
    load_plugins()
    candidate = DataLocation(path)
    for reader in READERS:
        arguments = reader.recognise(candidate)
        if arguments is None:
            continue
        known = [name for name in inspect.signature(reader.read).parameters if name not in ("problems", *arguments)]
        for option in options:
            if option not in known:
                raise unknown(f"option of {reader.read.__name__}", option, known)
        return reader.read(**arguments, problems=problems, **options)
    layouts = ", ".join(reader.layout for reader in READERS)
    raise DataError(f"{path}: no reader recognises this. Known layouts: {layouts}.")
