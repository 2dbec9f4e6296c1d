"""`polysem recipes`: every recipe, the row it stands for, and what it says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from polysem.cli.fast_help import QuickCommand, QuickGroup

if TYPE_CHECKING:
    from polysem.recipes import Recipe

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
        recipes = [recipe.model_dump(mode="json") for recipes in found.values() for recipe in recipes]
        typer.echo(json.dumps(recipes, indent=2, ensure_ascii=False))
    else:
        _list(found)


@group.command(
    "show", cls=QuickCommand, epilog="Example: polysem recipes show vse-infty --resolved --set training.epochs=5"
)
def show_recipe(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a recipe, or the path of a YAML file.")],
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Everything it comes to: what it extends, overrides and defaults.")
    ] = False,
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a key; repeatable. Shows it resolved.", show_default="none"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it resolved, as JSON.")] = False,
) -> None:
    """Print the YAML of a recipe as it stands, or all that it comes to."""
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


def _list(found: dict[str, list[Recipe]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for title, recipes in found.items():
        table = Table("Name", "What it is, and the row it stands for", "Epochs", "Batch", title=title)
        table.title_justify = "left"
        table.columns[0].no_wrap = True
        for recipe in recipes:
            training = recipe.training
            captions = "" if training.captions == "one" else f" × {training.captions}"
            about = Text(recipe.summary).append(f"\n{recipe.paper}" if recipe.paper else "", style="dim")
            table.add_row(Text(recipe.name), about, str(training.epochs), f"{training.batch}{captions}")
        console.print(table)
    console.print("polysem recipes show NAME prints one. What a recipe says, --set KEY=VALUE changes.", soft_wrap=True)
