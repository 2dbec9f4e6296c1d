"""`polysem reproduce`: experiments of the papers, beside the papers' numbers."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polysem.cli.common import AsJson, ProgressBar, QuickCommand, QuickGroup, new_console
from polysem.errors import ConfigError

if TYPE_CHECKING:
    from polysem.reproduction.gpo_synthetic import GPOCell, GPOExperiment

group = typer.Typer(cls=QuickGroup, no_args_is_help=True, epilog="Example: polysem reproduce gpo-synthetic --out gpo")


@group.callback()
def reproduce() -> None:
    """Repeat a paper's experiment and compare."""


@group.command(
    "gpo-synthetic",
    cls=QuickCommand,
    epilog="Example: polysem reproduce gpo-synthetic --design cos-sin-bigru --pattern M-10 --out gpo",
)
def gpo_synthetic_command(
    pattern: Annotated[
        list[str] | None,
        typer.Option(help="A, M-1, M-10, T-50% or L; repeatable.", show_default="all"),
    ] = None,
    design: Annotated[
        list[str] | None,
        typer.Option(help="interp, cos-sin-mlp, index-bigru or cos-sin-bigru; repeatable.", show_default="all"),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trainings of each, with seeds 0, 1, ….", min=1)] = 1,
    steps: Annotated[int, typer.Option(help="Steps of each training.", min=1)] = 1500,
    workers: Annotated[int | None, typer.Option(help="Processes.", min=1, show_default="one for each core")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for gpo-synthetic.html (table and plots) and .json.", show_default="none"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Which designs of GPO can learn which pooling? VSE∞, supplement, Table 6: RMSE of the learned coefficients.

    A design learns from randomly made sets of 20 to 100 vectors and is measured on sizes from 10 to 120. The whole
    table takes some 10 minutes of computing for each seed, shared by the processes.
    """
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file. Give a folder; one that is not there is made.")
    from polysem.reproduction import reproduce
    from polysem.reproduction.gpo_synthetic import DESIGNS, PATTERNS, GPOSettings

    try:
        with ProgressBar() as progress:
            experiment = reproduce(
                design or tuple(DESIGNS),
                pattern or tuple(PATTERNS),
                seeds,
                GPOSettings(steps=steps),
                workers,
                lambda _, done, total: progress("Trainings", done, total),
            )
    except KeyboardInterrupt:
        typer.echo("\nInterrupted. Nothing was written.", err=True)
        sys.exit(130)
    answer = json.dumps(_summarise(experiment), indent=2)
    if out is not None:
        from polysem.reproduction.gpo_synthetic import render_experiment

        out.mkdir(parents=True, exist_ok=True)
        (out / "gpo-synthetic.json").write_text(answer + "\n", encoding="utf-8")
        (out / "gpo-synthetic.html").write_text(render_experiment(experiment), encoding="utf-8")
    if as_json:
        typer.echo(answer)
    else:
        _show(experiment, out)


def _summarise(experiment: GPOExperiment) -> dict[str, Any]:
    designs = dict.fromkeys(cell.design for cell in experiment.cells)
    return {
        "experiment": "gpo-synthetic",
        "settings": asdict(experiment.settings),
        "seeds": experiment.seeds,
        "seconds": round(experiment.seconds, 1),
        "cpu_seconds": round(experiment.cpu_seconds, 1),
        "met": {design: "{} of {}".format(*experiment.met(design)) for design in designs},
        "cells": [
            {**asdict(cell), "ours": round(cell.ours, 5), "spread": round(cell.spread, 5)} for cell in experiment.cells
        ],
    }


def _show(experiment: GPOExperiment, out: Path | None) -> None:
    from rich.table import Table

    from polysem.reproduction.gpo_synthetic import DESIGNS, SIZES

    table = Table(
        "Design", "Pattern", *SIZES, title="RMSE of the coefficients, ours (the paper's)", title_justify="left"
    )
    before = None
    for run in dict.fromkeys((cell.design, cell.pattern) for cell in experiment.cells):
        if before not in (None, run[0]):
            table.add_section()
        cells = [_cell(cell, experiment.seeds) for cell in experiment.cells if (cell.design, cell.pattern) == run]
        table.add_row("" if before == run[0] else DESIGNS[run[0]], run[1], *cells)
        before = run[0]
    console = new_console()
    console.print(table)
    console.print("✓ within 0.004 or half of the paper's value; otherwise < below it, > above it")
    for design in dict.fromkeys(cell.design for cell in experiment.cells):
        console.print("{}: {} of {} cells".format(DESIGNS[design], *experiment.met(design)))
    console.print(f"{experiment.seconds / 60:.1f} min, {experiment.cpu_seconds / 60:.1f} min of computing")
    if out is not None:
        console.print(
            f"{out / 'gpo-synthetic.html'} shows learned against true coefficients.", soft_wrap=True, markup=False
        )


def _cell(cell: GPOCell, seeds: int) -> str:
    spread = f" ± {_short(cell.spread, 4)}" if seeds > 1 else ""
    sign = {"met": "[green]✓[/]", "better": "[yellow]<[/]", "worse": "[red]>[/]"}[cell.verdict]
    return f"{_short(cell.ours, 4)}{spread} ({_short(cell.paper, 3)}) {sign}"


def _short(value: float, digits: int) -> str:
    """As the paper prints them, .065: three columns fit a narrow terminal."""
    return f"{value:.{digits}f}".removeprefix("0")
