"""`polysem index` and `polysem add`: a collection into an index."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polysem.cli.common import (
    AsJson,
    FolderLabels,
    ProgressBar,
    TextFeatures,
    open_data,
    print_json,
    printable,
)
from polysem.cli.search_commands.search import IndexPath, ModelPath
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
Split = Annotated[list[str] | None, typer.Option(help="Only this split; repeatable.", show_default="all")]
Captions = Annotated[bool, typer.Option("--captions/--no-captions", help="Index the captions as well as the pictures.")]
Prefix = Annotated[
    str, typer.Option("--prefix", help="Put this before the ids of the collection's items.", show_default="nothing")
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Let items take the id of a different picture that is still there.")
]


def index_command(
    collection: Annotated[str, typer.Argument(help="The collection: a folder of pictures, a table, a data set.")],
    out: Annotated[str, typer.Option("--out", help="Folder of the new index.")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="The model's folder: what `polysem train --out` made. Else the one for photographs that comes with "
            "polysem.",
            show_default="polysem/photo-small",
        ),
    ] = None,
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
    prefix: Prefix = "",
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Make an index of a collection. Stopped at any moment, the same command goes on from there."""
    from polysem.environment.paths import PHOTO_SMALL
    from polysem.search import SearchError

    items = _open_split(collection, split, folder_labels)
    start = time.perf_counter()
    with _create_or_continue(out, model or PHOTO_SMALL, store, dtype) as index, ProgressBar(as_json) as progress:
        report = index.add(
            items,
            captions=captions,
            features=features,
            text_features=text_features,
            prefix=prefix,
            replacing=replace,
            progress=progress,
        )
        if not report.new + report.replaced + report.unchanged:
            empty = "" if index.stats().items else f" {out} is an empty index; delete it."
            raise InputError(f"Nothing of {collection} could be indexed: {_why(report.skipped).rstrip('.')}.{empty}")
        try:
            index.compact(progress)
        except SearchError as error:
            typer.echo(f"All items are in the index, but it could not be tidied up: {error}", err=True)
        _show_added(index, [report], out, time.perf_counter() - start, as_json)


def add_command(
    path: IndexPath,
    sources: Annotated[
        list[str], typer.Argument(metavar="COLLECTION|PICTURE|VIDEO …", help="What to add or bring up to date.")
    ],
    model: ModelPath = None,
    split: Split = None,
    captions: Captions = True,
    folder_labels: FolderLabels = False,
    features: Features = None,
    text_features: TextFeatures = None,
    prefix: Prefix = "",
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Add to an index. What is there unchanged costs nothing; what has changed is replaced."""
    from polysem.search import Index
    from polysem.search.id_conflicts import add_prefix, refuse_conflicts

    if prefix and (features or text_features):
        raise InputError(f"Stores of features know items by their own ids: leave out --prefix {prefix}.")

    start = time.perf_counter()
    once = dict.fromkeys(sources)
    pictures = [source for source in once if _is_picture(source)]
    collections: list[Collection] = [_open_split(each, split, folder_labels) for each in once if each not in pictures]
    with Index.open(path, write=True, model=model) as index, ProgressBar(as_json) as progress:
        if prefix:
            collections = [add_prefix(each, prefix) for each in collections]
        if pictures:
            collections.append(index.pictures(pictures))
        if not replace:
            refuse_conflicts(index.find_conflicts(*collections))  # before anything is added
        reports = [
            index.add(
                each,
                captions=captions,
                features=features,
                text_features=text_features,
                progress=progress,
            )
            for each in collections
        ]
        _show_added(index, reports, path, time.perf_counter() - start, as_json)


def _create_or_continue(out: str, model: str, store: str | None, dtype: str) -> Index:
    """A new index, or the one that the same command has begun."""
    from polysem.search import Index

    begun = _begun_model(out, model, store, dtype)
    if begun is None:
        return Index.create(out, model, store=store, dtype=dtype)  # type: ignore[arg-type]
    opened = Index.open(out, write=True, model=begun)
    typer.echo(f"Goes on with the index in {out}.", err=True)
    return opened


def _begun_model(out: str, model: str, store: str | None, dtype: str) -> Model | None:
    """The model, if there is an index of its vectors already, kept in the same place and the same way."""
    from polysem.errors import PolysemError
    from polysem.search import Index, open_index
    from polysem.search.encoder import make_manifest

    try:
        if store is not None and not open_index.points_to(out, store):
            return None
        with Index.open(out, model=model) as there:
            now = make_manifest(there.model)
            return None if there.manifest.differences(now) or there.manifest.dtype != dtype else there.model
    except PolysemError:  # there is none, or another model's: making one says what is wrong
        return None


def _open_split(source: str, split: list[str] | None, folder_labels: bool) -> Collection:
    collection = open_data(source, folder_labels)
    return collection.split(*split) if split else collection


def _is_picture(source: str) -> bool:
    from polysem.data.images import is_image
    from polysem.data.video import is_video

    return Path(source).is_file() and (is_image(Path(source)) or is_video(Path(source)))


def _show_added(index: Index, reports: Sequence[AddReport], path: str, seconds: float, as_json: bool) -> None:
    stats = index.stats()
    done: dict[str, Any] = {
        name: sum(getattr(report, name) for report in reports) for name in ("new", "replaced", "unchanged", "removed")
    }
    reused = sum(report.reused for report in reports)
    conflicts = [conflict for report in reports for conflict in report.conflicts]
    skipped = [each for report in reports for each in report.skipped]
    if as_json:
        summary = done | {
            "index": path,
            "items": stats.items,
            "by_side": stats.by_side,
            "seconds": seconds,
            "reused": reused,
            "clashes": [printable(conflict.id) for conflict in conflicts],
            "skipped": [{"what": printable(each.what), "why": each.why} for each in skipped],
            "remarks": list(dict.fromkeys(report.remark for report in reports if report.remark)),
        }
        print_json(summary)
        return
    counts = ", ".join(f"{count:,} {name}" for name, count in done.items() if count) or "nothing new"
    sides = " and ".join(f"{count:,} {side}s" for side, count in stats.by_side.items() if count)
    typer.echo(f"{path}: {counts} in {seconds:.1f} s. It holds {sides or 'nothing'}.")
    if reused:
        typer.echo(f"  {reused:,} of those replaced kept their vectors, because their content is the same.")
    if conflicts:
        name, existing, new, _ = conflicts[0]
        typer.echo(f"  {len(conflicts):,} took the id of a different picture, e.g. {name}: {new}, not {existing}.")
    for each in skipped[:_SHOWN]:
        typer.echo(f"  left out: {printable(each.what)}: {printable(each.why)}")
    if len(skipped) > _SHOWN:
        typer.echo(f"  … and {len(skipped) - _SHOWN:,} more; --json lists all.")
    for remark in dict.fromkeys(report.remark for report in reports if report.remark):
        typer.echo(f"  {remark}")
    typer.echo(f'Search it: polysem search {path} "a dog on a beach"')


def _why(skipped: Sequence[Any]) -> str:
    return f"{len(skipped):,} items could not be read, e.g. {skipped[0].why}" if skipped else "it is empty"
