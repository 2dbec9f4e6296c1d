"""`polysem reproduce`: experiments of the papers, beside the papers' numbers."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from polysem.cli.options import AsJson, QuickCommand, QuickGroup, option
from polysem.cli.output import ProgressBar, exit_on_interrupt, new_console, new_table
from polysem.errors import ConfigError

if TYPE_CHECKING:
    from rich.text import Text

    from polysem.reproduction.gpo_synthetic import GPOCell, GPOExperiment

group = typer.Typer(cls=QuickGroup, no_args_is_help=True, epilog="Example: polysem reproduce gpo-synthetic --out gpo")
_SIGNS = {"met": ("✓", "green"), "better": ("<", "yellow"), "worse": (">", "red")}


@group.callback()
def reproduce() -> None:
    """Repeat a paper's experiment and compare."""


@group.command(
    "gpo-synthetic",
    cls=QuickCommand,
    epilog="Example: polysem reproduce gpo-synthetic --design cos-sin-bigru --pattern M-10 --out gpo",
)
def gpo_synthetic_command(
    pattern: Annotated[list[str] | None, option("A, M-1, M-10, T-50% or L; repeatable.", default="all")] = None,
    design: Annotated[
        list[str] | None, option("interp, cos-sin-mlp, index-bigru, cos-sin-bigru", default="all")
    ] = None,
    seeds: Annotated[int, Option(help="Trainings of each, with seeds 0, 1, ….", min=1)] = 1,
    steps: Annotated[int, Option(help="Steps of each training.", min=1)] = 1500,
    workers: Annotated[int | None, option("Processes.", min=1, default="one for each core")] = None,
    out: Annotated[Path | None, option("Folder for gpo-synthetic.html (table and plots) and .json.")] = None,
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

    with exit_on_interrupt("Interrupted. Nothing was written."), ProgressBar() as progress:
        experiment = reproduce(
            design or tuple(DESIGNS),
            pattern or tuple(PATTERNS),
            seeds,
            GPOSettings(steps=steps),
            workers,
            lambda _, done, total: progress("Trainings", done, total),
        )
    summary = {
        "experiment": "gpo-synthetic",
        "settings": asdict(experiment.settings),
        "seeds": experiment.seeds,
        "seconds": round(experiment.seconds, 1),
        "cpu_seconds": round(experiment.cpu_seconds, 1),
        "met": {cell.design: "{} of {}".format(*experiment.met(cell.design)) for cell in experiment.cells},
        "cells": [
            {**asdict(cell), "ours": round(cell.ours, 5), "spread": round(cell.spread, 5)} for cell in experiment.cells
        ],
    }
    answer = json.dumps(summary, indent=2)
    if out is not None:
        from polysem.reproduction.gpo_synthetic import render_experiment

        out.mkdir(parents=True, exist_ok=True)
        (out / "gpo-synthetic.json").write_text(answer + "\n", encoding="utf-8")
        (out / "gpo-synthetic.html").write_text(render_experiment(experiment), encoding="utf-8")
    if as_json:
        typer.echo(answer)
    else:
        _show(experiment, out)


def _show(experiment: GPOExperiment, out: Path | None) -> None:
    from polysem.reproduction.gpo_synthetic import DESIGNS, SIZES

    table = new_table("RMSE of the coefficients, ours (the paper's)", "Design", "Pattern", *SIZES)
    before = None
    for run in dict.fromkeys((cell.design, cell.pattern) for cell in experiment.cells):
        if before not in (None, run[0]):
            table.add_section()
        cells = [_format(cell, experiment.seeds) for cell in experiment.cells if (cell.design, cell.pattern) == run]
        table.add_row("" if before == run[0] else DESIGNS[run[0]], run[1], *cells)
        before = run[0]
    console = new_console()
    console.print(table)
    console.print("✓ within 0.004 or half of the paper's value; otherwise < below it, > above it")
    for design in dict.fromkeys(cell.design for cell in experiment.cells):
        console.print("{}: {} of {} cells".format(DESIGNS[design], *experiment.met(design)))
    console.print(f"{experiment.seconds / 60:.1f} min, {experiment.cpu_seconds / 60:.1f} min of computing")
    if out is not None:
        console.print(f"{out / 'gpo-synthetic.html'} shows learned against true coefficients.", soft_wrap=True)


def _format(cell: GPOCell, seeds: int) -> Text:
    """Numbers as the paper prints them, .065: three columns fit a narrow terminal."""
    from rich.text import Text

    ours, spread, paper = (
        f"{value:.{digits}f}".removeprefix("0") for value, digits in ((cell.ours, 4), (cell.spread, 4), (cell.paper, 3))
    )
    return Text.assemble(f"{ours}{f' ± {spread}' if seeds > 1 else ''} ({paper}) ", _SIGNS[cell.verdict])
