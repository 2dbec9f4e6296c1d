"""`polysem index`, `add`, `remove`, `stats`, `verify` and `compact`: make an index and look after it."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from polysem.cli.options import AsJson, Features, FolderLabels, Splits, TextFeatures, open_data, option
from polysem.cli.output import ProgressBar, escape_name, print_facts, print_first, print_json
from polysem.cli.search import IndexPath, ModelPath
from polysem.errors import InputError, PolysemError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polysem.models import Model
    from polysem.search import AddReport, Index

_SHOWN, _SHOWN_IDS = 10, 5

Captions = Annotated[bool, Option("--captions/--no-captions", help="Index the captions as well as the pictures.")]
Prefix = Annotated[str, option("Put this before the ids of the collection's items.", default="nothing")]
Replace = Annotated[bool, Option("--replace", help="Let items take the id of a different picture that is still there.")]


def index_command(
    collection: Annotated[str, Argument(help="The collection: a folder of pictures, a table, a data set.")],
    out: Annotated[str, Option(help="Folder of the new index.")],
    model: Annotated[
        str | None,
        option("The model: a folder or a name, such as what `polysem train` made.", default="the best that is here"),
    ] = None,
    store: Annotated[
        str | None, option("Milvus, as milvus+http://localhost:19530/photos.", default="the folder")
    ] = None,
    dtype: Annotated[str, Option(help="float32, or float16 for half the space.")] = "float32",
    split: Splits = None,
    captions: Captions = True,
    folder_labels: FolderLabels = False,
    features: Features = None,
    text_features: TextFeatures = None,
    prefix: Prefix = "",
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Make an index of a collection. Stopped at any moment, the same command goes on from there."""
    from polysem.search import Index, SearchError

    items = open_data(collection, folder_labels, split)
    start = time.perf_counter()
    name = model or _choose_model(out)
    begun = _find_resumable_model(out, name, store, dtype)
    if begun is not None:
        opened = Index.open(out, write=True, model=begun)
        typer.echo(f"Resuming the index in {out}.", err=True)
    else:
        opened = Index.create(out, name, store=store, dtype=dtype)  # type: ignore[arg-type]
    options: dict[str, Any] = {"features": features, "text_features": text_features, "prefix": prefix}
    with opened as index, ProgressBar(as_json) as progress:
        report = index.add(items, captions=captions, replace=replace, **options, progress=progress)
        if not report.new + report.replaced + report.unchanged:
            skipped = report.skipped
            why = f"{len(skipped):,} items could not be read, e.g. {skipped[0].why}" if skipped else "it is empty"
            empty = "" if index.stats().items else f" {out} is an empty index; delete it."
            raise InputError(f"Nothing of {collection} could be indexed: {why.rstrip('.')}.{empty}")
        try:
            index.compact(progress)
        except SearchError as error:
            typer.echo(f"All items are in the index, but it could not be compacted: {error}", err=True)
        _show_added(index, [report], out, time.perf_counter() - start, as_json)


def add_command(
    path: IndexPath,
    sources: Annotated[list[str], Argument(metavar="COLLECTION|PICTURE|VIDEO …", help="What to add or update.")],
    model: ModelPath = None,
    split: Splits = None,
    captions: Captions = True,
    folder_labels: FolderLabels = False,
    features: Features = None,
    text_features: TextFeatures = None,
    prefix: Prefix = "",
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Add to an index. What is there unchanged costs nothing; what has changed is replaced."""
    from polysem.data.images import is_image
    from polysem.data.video import is_video
    from polysem.search import Index
    from polysem.search.ingest import add_prefix, refuse_conflicts

    start = time.perf_counter()
    once = dict.fromkeys(sources)
    pictures = [each for each in once if Path(each).is_file() and (is_image(Path(each)) or is_video(Path(each)))]
    collections = [open_data(each, folder_labels, split) for each in once if each not in pictures]
    options: dict[str, Any] = {"features": features, "text_features": text_features}
    with Index.open(path, write=True, model=model) as index, ProgressBar(as_json) as progress:
        if prefix:
            collections = [add_prefix(each, prefix, features, text_features) for each in collections]
        if pictures:
            collections.append(index.collect_files(pictures))
        if not replace:
            refuse_conflicts(index.find_conflicts(*collections))  # before anything is added
        reports = [index.add(each, captions=captions, **options, progress=progress) for each in collections]
        _show_added(index, reports, path, time.perf_counter() - start, as_json)


def _choose_model(out: str) -> str:
    """The model of the index that is being resumed, or the best one on this machine; says which, and why."""
    from polysem.environment.default_model import VARIABLE, choose_model
    from polysem.search import Index

    earlier = Index.find_model(out)
    if earlier is not None:
        return earlier
    choice = choose_model()
    typer.echo(f"Model: {choice.name}, as {choice.why}. Another: --model NAME, or {VARIABLE}.", err=True)
    if choice.better is not None:
        typer.echo(f"Better: {choice.better.model}, after `{choice.better.remedy}`.", err=True)
    return choice.name


def _find_resumable_model(out: str, model: str, store: str | None, dtype: str) -> Model | None:
    """The model, if the same command has begun an index of its vectors, kept in the same place and the same way."""
    from polysem.search import Index
    from polysem.search.backend import points_to
    from polysem.search.encoder import make_manifest

    try:
        if store is not None and not points_to(out, store):
            return None
        with Index.open(out, model=model) as there:
            now = make_manifest(there.model)
            return None if there.manifest.differences(now) or there.manifest.dtype != dtype else there.model
    except PolysemError:  # there is none, or another model's: making one says what is wrong
        return None


def _show_added(index: Index, reports: Sequence[AddReport], path: str, seconds: float, as_json: bool) -> None:
    stats = index.stats()
    done: dict[str, Any] = {
        name: sum(getattr(report, name) for report in reports) for name in ("new", "replaced", "unchanged", "removed")
    }
    reused = sum(report.reused for report in reports)
    conflicts = [conflict for report in reports for conflict in report.conflicts]
    skipped = [each for report in reports for each in report.skipped]
    remarks = list(dict.fromkeys(report.remark for report in reports if report.remark))
    if as_json:
        summary = done | {
            "index": path,
            "items": stats.items,
            "by_side": stats.by_side,
            "seconds": seconds,
            "reused": reused,
            "clashes": [escape_name(conflict.id) for conflict in conflicts],
            "skipped": [{"what": escape_name(each.what), "why": each.why} for each in skipped],
            "remarks": remarks,
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
    lines = [f"left out: {escape_name(each.what)}: {escape_name(each.why)}" for each in skipped]
    print_first(lines, _SHOWN, "--json lists all.", indent="  ")
    for remark in remarks:
        typer.echo(f"  {remark}")
    typer.echo(f'Search it: polysem search {path} "a dog on a beach"')


def remove_command(
    path: IndexPath,
    ids: Annotated[list[str] | None, Argument(metavar="ID …", help="Ids of the items.", show_default="none")] = None,
    where: Annotated[str | None, option("Every item for which this holds.", "--filter")] = None,
    as_json: AsJson = False,
) -> None:
    """Remove items from an index, and with a picture its captions. `polysem compact` gives the space back."""
    from polysem.search import Index

    if not ids and where is None:
        raise InputError("Say what to remove: ids, or --filter.")
    with Index.open(path, write=True) as index:
        known = {item.id for item in index.items(ids or [])}
        removed = index.remove(ids or []) + (index.remove_where(where) if where is not None else 0)
    missing = [escape_name(each) or "''" for each in ids or [] if each not in known]
    if as_json:
        print_json({"removed": removed, "not_there": missing}, indent=None)
        return
    typer.echo(f"{path}: {removed:,} items removed.")
    if missing:
        typer.echo(f"  not there: {', '.join(missing[:_SHOWN_IDS])}{' …' if len(missing) > _SHOWN_IDS else ''}")


def stats_command(path: IndexPath, as_json: AsJson = False) -> None:
    """Show how large an index is, what made it, and the measured recall of its fast mode."""
    from polysem.search import Index

    with Index.open(path) as index:
        stats = index.stats()
    if as_json:
        print_json(asdict(stats))
        return
    manifest = stats.manifest
    sizes = " / ".join(f"{side} {size}" for side, size in manifest.sets.items())
    rows = {
        "items": ", ".join(f"{count:,} {side}s" for side, count in stats.by_side.items()),
        "vectors": f"{sizes} × {manifest.dim} {manifest.dtype}",
        "similarity": str(manifest.similarity.get("name")),
        "model": f"{manifest.model or 'unnamed'} (fingerprint {manifest.fingerprint[:12]})",
    }
    if stats.bytes is not None and stats.bytes_per_item is not None:
        size = _format_size(stats.bytes)
        rows["on disk"] = f"{size}, {stats.bytes_per_item:,.0f} bytes per item, {stats.segments} segments"
    if stats.dead:
        rows["removed, not freed"] = f"{stats.dead:,} items; `polysem compact {path}` frees them"
    rows["fast mode"] = "\n".join(_list_recalls(stats.audit)) or f"not measured yet: `polysem verify {path}`"
    if stats.changed_since_audit:
        rows["fast mode"] += "\n(the index has changed since)"
    print_facts(path, rows.items())


def verify_command(
    path: IndexPath,
    sample: Annotated[int, Option(min=1, help="Queries to measure the recall of the fast mode with.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Check every checksum of an index, and measure recall@10 of its fast mode against the exact one."""
    from polysem.search import Index, SearchError

    try:
        opened, kept = Index.open(path, write=True), True
    except SearchError as error:  # being written, or not ours to write: it can be checked all the same
        opened, kept = Index.open(path), False
        typer.echo(f"The figures will not be kept: {error}", err=True)
    with opened as index, ProgressBar(as_json) as progress:
        report = index.verify(sample=sample, progress=progress)
    if as_json:
        damage = [
            {"file": each.segment, "rows": [each.rows.start, each.rows.stop] if each.rows else None, "why": each.why}
            for each in report.damage
        ]
        summary = {"damage": damage, "lost": report.lost, "repaired": report.repaired, "audit": report.audit}
        print_json({**summary, "remark": report.remark, "kept": kept})
    else:
        for each in report.damage:
            ids = report.lost.get(each.segment, [])
            concerns = f"; it holds {len(ids):,} items, e.g. {', '.join(ids[:_SHOWN_IDS])}" if ids else ""
            typer.echo(f"  damaged: {each.segment}: {each.why}{concerns}")
        typer.echo(f"{path}: {'every checksum is right' if not report.damage else f'{len(report.damage)} damaged'}.")
        rebuilt = [f"was damaged, and has been rebuilt: {name}" for name in report.repaired]
        for line in [*rebuilt, *_list_recalls(report.audit), *([report.remark] if report.remark else [])]:
            typer.echo(f"  {line}")
        if report.damage:
            typer.echo("Remove or add these items again (`polysem remove`, `polysem add`); all others can be searched.")
    if report.damage:
        raise typer.Exit(1)


def compact_command(path: IndexPath, as_json: AsJson = False) -> None:
    """Give back the space of removed items and merge small segments. Searching goes on meanwhile."""
    from polysem.search import Index

    with Index.open(path, write=True) as index, ProgressBar(as_json) as progress:
        done = index.compact(progress)
    if as_json:
        print_json(done._asdict() | {"damaged": [each.segment for each in done.damaged]})
        return
    counts = f"{done.rewritten:,} segments rewritten, {done.dropped_rows:,} removed items dropped"
    typer.echo(f"{path}: {counts}, {_format_size(done.freed_bytes)} freed.")
    for each in done.damaged:
        typer.echo(f"  left as it is, because it is damaged: {each.segment}: {each.why}")


def _list_recalls(audit: dict[str, Any] | None) -> list[str]:
    if audit is None:
        return []
    when = time.strftime("%Y-%m-%d", time.localtime(audit["measured"]))
    return [
        f"{way}: recall@10 {each['recall10']:.3f} (worst query {each['worst']:.1f}), {each['fast_ms']:.1f} ms for "
        f"{each['exact_ms']:.1f} ms exact; {each['queries']} queries, {audit['candidates']} candidates, {when}"
        for way, each in audit["recall"].items()
    ]


def _format_size(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"
