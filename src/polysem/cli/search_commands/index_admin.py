"""`polysem remove`, `stats`, `verify` and `compact`: looking after an index."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polysem.cli.common import AsJson, ProgressBar, print_facts, print_json, printable
from polysem.cli.search_commands.search import IndexPath
from polysem.errors import InputError

if TYPE_CHECKING:
    from polysem.search import IndexStats

_SHOWN = 5


def remove_command(
    path: IndexPath,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID …", help="Ids of the items.", show_default="none")
    ] = None,
    where: Annotated[
        str | None, typer.Option("--filter", help="Every item for which this holds.", show_default="none")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove items from an index, and with a picture its captions. `polysem compact` gives the space back."""
    from polysem.search import Index

    if not ids and where is None:
        raise InputError("Say what to remove: ids, or --filter.")
    with Index.open(path, write=True) as index:
        known = {item.id for item in index.items(ids or [])}
        removed = index.remove(ids or []) + (index.remove_where(where) if where is not None else 0)
    missing = [printable(each) or "''" for each in ids or [] if each not in known]
    if as_json:
        print_json({"removed": removed, "not_there": missing}, indent=None)
        return
    typer.echo(f"{path}: {removed:,} items removed.")
    if missing:
        typer.echo(f"  not there: {', '.join(missing[:_SHOWN])}{' …' if len(missing) > _SHOWN else ''}")


def stats_command(path: IndexPath, as_json: AsJson = False) -> None:
    """Show how large an index is, what made it, and the measured recall of its fast mode."""
    from polysem.search import Index

    with Index.open(path) as index:
        stats = index.stats()
    if as_json:
        print_json(asdict(stats))
    else:
        _show_stats(path, stats)


def verify_command(
    path: IndexPath,
    sample: Annotated[int, typer.Option(min=1, help="Queries to measure the recall of the fast mode with.")] = 100,
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
        summary: dict[str, Any] = {
            "damage": [
                {
                    "file": each.segment,
                    "rows": None if each.rows is None else [each.rows.start, each.rows.stop],
                    "why": each.why,
                }
                for each in report.damage
            ],
            "lost": report.lost,
            "repaired": report.repaired,
            "audit": report.audit,
            "remark": report.remark,
            "kept": kept,
        }
        print_json(summary)
    else:
        for each in report.damage:
            ids = report.lost.get(each.segment, [])
            concerns = f"; it holds {len(ids):,} items, e.g. {', '.join(ids[:_SHOWN])}" if ids else ""
            typer.echo(f"  damaged: {each.segment}: {each.why}{concerns}")
        typer.echo(f"{path}: {'every checksum is right' if not report.damage else f'{len(report.damage)} damaged'}.")
        for name in report.repaired:
            typer.echo(f"  was damaged, and has been rebuilt: {name}")
        for line in [*_recalls(report.audit), *([report.remark] if report.remark else [])]:
            typer.echo(f"  {line}")
    if report.damage:
        if not as_json:
            typer.echo("Remove or add these items again (`polysem remove`, `polysem add`); all others can be searched.")
        raise typer.Exit(1)


def compact_command(path: IndexPath, as_json: AsJson = False) -> None:
    """Give back the space of removed items and merge small segments. Searching goes on meanwhile."""
    from polysem.search import Index

    with Index.open(path, write=True) as index, ProgressBar(as_json) as progress:
        done = index.compact(progress)
    if as_json:
        print_json(done._asdict() | {"damaged": [each.segment for each in done.damaged]})
        return
    typer.echo(
        f"{path}: {done.rewritten:,} segments rewritten, {done.dropped_rows:,} removed items dropped, "
        f"{_size(done.freed_bytes)} freed."
    )
    for each in done.damaged:
        typer.echo(f"  left as it is, because it is damaged: {each.segment}: {each.why}")


def _show_stats(path: str, stats: IndexStats) -> None:
    manifest = stats.manifest
    sizes = " / ".join(f"{side} {size}" for side, size in manifest.sets.items())
    rows = {
        "items": ", ".join(f"{count:,} {side}s" for side, count in stats.by_side.items()),
        "vectors": f"{sizes} × {manifest.dim} {manifest.dtype}",
        "similarity": str(manifest.similarity.get("name")),
        "model": f"{manifest.model or 'unnamed'} (fingerprint {manifest.fingerprint[:12]})",
    }
    if stats.bytes is not None and stats.bytes_per_item is not None:
        rows["on disk"] = f"{_size(stats.bytes)}, {stats.bytes_per_item:,.0f} bytes per item, {stats.segments} segments"
    if stats.dead:
        rows["removed, not freed"] = f"{stats.dead:,} items; `polysem compact {path}` frees them"
    rows["fast mode"] = "\n".join(_recalls(stats.audit)) or f"not measured yet: `polysem verify {path}`"
    if stats.changed_since_audit:
        rows["fast mode"] += "\n(the index has changed since)"
    print_facts(path, rows.items())


def _recalls(audit: dict[str, Any] | None) -> list[str]:
    if audit is None:
        return []
    when = time.strftime("%Y-%m-%d", time.localtime(audit["measured"]))
    return [
        f"{way}: recall@10 {each['recall10']:.3f} (worst query {each['worst']:.1f}), {each['fast_ms']:.1f} ms for "
        f"{each['exact_ms']:.1f} ms exact; {each['queries']} queries, {audit['candidates']} candidates, {when}"
        for way, each in audit["recall"].items()
    ]


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
