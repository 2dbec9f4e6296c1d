"""`polysem index` and `polysem add`: a collection into an index."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polysem.cli.progress import stages
from polysem.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polysem.data.collection import Collection
    from polysem.models import Model
    from polysem.search import AddReport, Index

_SHOWN = 10

Features = Annotated[
    Path | None, typer.Option("--features", help="Store of image features made earlier.", show_default="none")
]
TextFeatures = Annotated[
    Path | None, typer.Option("--text-features", help="Store of caption features.", show_default="none")
]
Split = Annotated[list[str] | None, typer.Option(help="Only this split; repeatable.", show_default="all")]
Captions = Annotated[bool, typer.Option("--captions/--no-captions", help="Index the captions as well as the pictures.")]
FolderLabels = Annotated[bool, typer.Option("--folder-labels", help="Names of subfolders are labels.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")]


def index_command(
    collection: Annotated[str, typer.Argument(help="The collection: a folder of pictures, a table, a data set.")],
    model: Annotated[str, typer.Option("--model", help="The model's folder: what `polysem train --out` made.")],
    out: Annotated[str, typer.Option("--out", help="Folder of the new index.")],
    store: Annotated[
        str | None,
        typer.Option(
            "--store", help="Keep it in Milvus: milvus+http://localhost:19530/photos.", show_default="the folder"
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, or float16 for half the space.")] = "float32",
    split: Split = None,
    captions: Captions = True,
    folder_labels: FolderLabels = False,
    features: Features = None,
    text_features: TextFeatures = None,
    as_json: AsJson = False,
) -> None:
    """Make an index of a collection. Stopped at any moment, the same command goes on from there."""
    found = _collection(collection, split, folder_labels)
    start = time.perf_counter()
    with _made(out, model, store, dtype) as index, stages(quiet=as_json) as progress:
        report = index.add(found, captions=captions, features=features, text_features=text_features, progress=progress)
        if not report.new + report.replaced + report.unchanged:
            empty = "" if index.stats().items else f" {out} is an empty index; delete it."
            raise InputError(f"Nothing of {collection} could be indexed: {_why(report.skipped)}.{empty}")
        index.compact(progress)
        _tell(index, [report], out, time.perf_counter() - start, as_json)


def add_command(
    place: Annotated[str, typer.Argument(metavar="INDEX", help="The index.")],
    sources: Annotated[
        list[str], typer.Argument(metavar="COLLECTION|PICTURE …", help="What to add or bring up to date.")
    ],
    model: Annotated[
        str | None, typer.Option("--model", help="Where the index's model is now.", show_default="where it was")
    ] = None,
    split: Split = None,
    captions: Captions = True,
    folder_labels: FolderLabels = False,
    features: Features = None,
    text_features: TextFeatures = None,
    as_json: AsJson = False,
) -> None:
    """Add to an index. What is there unchanged costs nothing; what has changed is replaced."""
    from polysem.search import Index

    start = time.perf_counter()
    once = dict.fromkeys(sources)
    pictures = [source for source in once if _is_picture(source)]
    found: list[Collection] = [_collection(each, split, folder_labels) for each in once if each not in pictures]
    with Index.open(place, write=True, model=model) as index, stages(quiet=as_json) as progress:
        if pictures:
            found.append(index.pictures(pictures))
        reports = [
            index.add(each, captions=captions, features=features, text_features=text_features, progress=progress)
            for each in found
        ]
        _tell(index, reports, place, time.perf_counter() - start, as_json)


def _made(out: str, model: str, store: str | None, dtype: str) -> Index:
    """A new index, or the one that this very command has begun."""
    from polysem.search import Index

    begun = _begun(out, model, store, dtype)
    if begun is None:
        return Index.create(out, model, store=store, dtype=dtype)  # type: ignore[arg-type]
    opened = Index.open(out, write=True, model=begun)
    typer.echo(f"Goes on with the index in {out}.", err=True)
    return opened


def _begun(out: str, model: str, store: str | None, dtype: str) -> Model | None:
    """The model, if there is an index of its vectors already, kept in the same place and the same way."""
    from polysem.errors import PolysemError
    from polysem.search import Index, places
    from polysem.search.encoder import manifest_of

    try:
        if store is not None and not places.points_to(out, store):
            return None
        with Index.open(out, model=model) as there:
            now = manifest_of(there.model)
            return None if there.manifest.differences(now) or there.manifest.dtype != dtype else there.model
    except PolysemError:  # there is none, or another model's: making one says what is wrong
        return None


def _collection(source: str, split: list[str] | None, folder_labels: bool) -> Collection:
    from polysem.data import open_collection

    options: dict[str, Any] = {"folder_labels": True} if folder_labels else {}
    found = open_collection(source, **options)
    return found.split(*split) if split else found


def _is_picture(source: str) -> bool:
    from polysem.data.images import is_image

    return Path(source).is_file() and is_image(Path(source))


def _tell(index: Index, reports: Sequence[AddReport], place: str, seconds: float, as_json: bool) -> None:
    stats = index.stats()
    done: dict[str, Any] = {
        name: sum(getattr(report, name) for report in reports) for name in ("new", "replaced", "unchanged", "removed")
    }
    skipped = [each for report in reports for each in report.skipped]
    if as_json:
        told = done | {
            "index": place,
            "items": stats.items,
            "by_side": stats.by_side,
            "seconds": seconds,
            "skipped": [{"what": printable(each.what), "why": each.why} for each in skipped],
        }
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
        return
    counts = ", ".join(f"{count:,} {name}" for name, count in done.items() if count) or "nothing new"
    sides = " and ".join(f"{count:,} {side}s" for side, count in stats.by_side.items() if count)
    typer.echo(f"{place}: {counts} in {seconds:.1f} s. It holds {sides or 'nothing'}.")
    for each in skipped[:_SHOWN]:
        typer.echo(f"  left out: {printable(each.what)}: {each.why}")
    if len(skipped) > _SHOWN:
        typer.echo(f"  … and {len(skipped) - _SHOWN:,} more; --json lists all.")
    typer.echo(f'Search it: polysem search {place} "a dog on a beach"')


def printable(name: str) -> str:
    """A name with what is no Unicode in it, as of files in an old encoding, written out."""
    return name.encode(errors="backslashreplace").decode()


def _why(skipped: Sequence[Any]) -> str:
    return f"{len(skipped):,} items could not be read, e.g. {skipped[0].why}" if skipped else "it is empty"
