"""`polysem recipes` and `polysem parts`: what there is to train, and to build models from."""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from polysem.cli.common import AsJson, QuickCommand, QuickGroup, new_console, print_json
from polysem.errors import unknown

if TYPE_CHECKING:
    from polysem.recipes import Recipe
    from polysem.registry import PartInfo

FOLDERS = ("encoders", "pooling", "sets", "similarity", "objectives")
"""The folders that hold parts, in the order data flows through them."""
PROTOCOLS = "protocols"

group = typer.Typer(cls=QuickGroup, invoke_without_command=True, epilog="Example: polysem recipes show dive --resolved")


@group.callback()
def list_recipes(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print the recipes as JSON, fully resolved.")] = False,
) -> None:
    """List the recipes: each is a row of a paper's table, or a small version of one."""
    if context.invoked_subcommand is not None:
        return
    from polysem.recipes.loading import catalogue

    found = catalogue()
    if as_json:
        print_json([recipe.model_dump(mode="json") for recipes in found.values() for recipe in recipes])
    else:
        _show_recipes(found)


@group.command(
    "show", cls=QuickCommand, epilog="Example: polysem recipes show vse-infty --resolved --set training.epochs=5"
)
def show_recipe(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a recipe, or the path of a YAML file.")],
    resolved: Annotated[
        bool, typer.Option("--resolved", help="With all that it extends, overrides and takes by default.")
    ] = False,
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a key; repeatable. Shows it resolved.", show_default="none"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it resolved, as JSON.")] = False,
) -> None:
    """Print the YAML of a recipe as it stands, or with every key."""
    from polysem.recipes import as_yaml, load, source

    if as_json:
        typer.echo(load(recipe, override or ()).model_dump_json(indent=2))
    elif resolved or override:
        _print_yaml(as_yaml(load(recipe, override or ())))
    else:
        _print_yaml(source(recipe))


def _print_yaml(text: str) -> None:
    from rich.console import Console
    from rich.syntax import Syntax

    console = Console()
    if console.is_terminal:
        console.print(Syntax(text, "yaml", background_color="default", word_wrap=True))
    else:
        typer.echo(text, nl=False)


def _show_recipes(found: dict[str, list[Recipe]]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = new_console()
    for title, recipes in found.items():
        table = Table(
            "Name", "What it is, and the row it stands for", "Epochs", "Batch", title=title, title_justify="left"
        )
        table.columns[0].no_wrap = True
        for recipe in recipes:
            training = recipe.training
            captions = "" if training.captions == "one" else f" × {training.captions}"
            about = Text(recipe.summary).append(f"\n{recipe.paper}" if recipe.paper else "", style="dim")
            table.add_row(Text(recipe.name), about, str(training.epochs), f"{training.batch}{captions}")
        console.print(table)
    console.print("polysem recipes show NAME prints one; --set KEY=VALUE changes a key of it.", soft_wrap=True)


def parts_command(
    folder: Annotated[
        str | None,
        typer.Argument(help=f"Only this folder: {', '.join(FOLDERS)}. Or {PROTOCOLS}, of eval.", show_default="all"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List every encoder, pooling, set predictor, similarity and objective with its knobs and their defaults."""
    if folder not in (None, *FOLDERS, PROTOCOLS):
        raise unknown("folder of parts", folder or "", (*FOLDERS, PROTOCOLS))
    parts = {name: _describe_parts(name) for name in (FOLDERS if folder is None else (folder,))}
    if as_json:
        print_json({name: [asdict(part) for part in infos] for name, infos in parts.items()})
    else:
        _show_parts(parts)


def _describe_parts(folder: str) -> list[PartInfo]:
    module = import_module(f"polysem.evaluation.{folder}" if folder == PROTOCOLS else f"polysem.{folder}")
    return [module.describe(name) for name in module.names()]


def _show_parts(parts: dict[str, list[PartInfo]]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = new_console()
    for folder, infos in parts.items():
        table = Table("Name", "What it does", "Knobs", title=folder, title_justify="left", show_lines=True)
        table.columns[0].no_wrap = True
        for part in infos:
            knobs = "\n".join(
                f"{knob.name}: {knob.type}" + (", required" if knob.default == "required" else f" = {knob.default}")
                for knob in part.knobs
            )
            # `Text`, not markup: types such as tuple[int, ...] carry square brackets.
            table.add_row(Text(part.name), Text(part.summary), Text(knobs))
        console.print(table)
