"""`polysem recipes` and `polysem parts`: what there is to train, and to build models from."""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from typing import Annotated

import typer
from typer import Argument, Option

from polysem.cli.options import AsJson, QuickCommand, QuickGroup, option
from polysem.cli.output import new_console, new_table, print_json
from polysem.errors import unknown

FOLDERS = ("encoders", "pooling", "sets", "similarity", "objectives")
"""The folders that hold parts, in the order data flows through them."""
PROTOCOLS = "protocols"

group = typer.Typer(cls=QuickGroup, invoke_without_command=True, epilog="Example: polysem recipes show dive --resolved")


@group.callback()
def list_recipes(
    context: typer.Context,
    as_json: Annotated[bool, Option("--json", help="Print the recipes as JSON, fully resolved.")] = False,
) -> None:
    """List the recipes: each is a row of a paper's table, or a small version of one."""
    if context.invoked_subcommand is not None:
        return
    from rich.text import Text

    from polysem.recipes.loading import catalogue

    found = catalogue()
    if as_json:
        print_json([recipe.model_dump(mode="json") for recipes in found.values() for recipe in recipes])
        return
    console = new_console()
    for title, recipes in found.items():
        table = new_table(title, "Name", "What it is, and the row it stands for", "Epochs", "Batch")
        table.columns[0].no_wrap = True
        for recipe in recipes:
            training = recipe.training
            captions = "" if training.captions == "one" else f" × {training.captions}"
            about = Text(recipe.summary).append(f"\n{recipe.paper}" if recipe.paper else "", style="dim")
            table.add_row(recipe.name, about, str(training.epochs), f"{training.batch}{captions}")
        console.print(table)
    console.print("polysem recipes show NAME prints one; --set KEY=VALUE changes a key of it.", soft_wrap=True)


@group.command(
    "show", cls=QuickCommand, epilog="Example: polysem recipes show vse-infty --resolved --set training.epochs=5"
)
def show_recipe(
    recipe: Annotated[str, Argument(metavar="RECIPE", help="Name of a recipe, or the path of a YAML file.")],
    resolved: Annotated[bool, Option("--resolved", help="With all that it extends and takes by default.")] = False,
    override: Annotated[list[str] | None, option("Change a key; repeatable.", "--set", metavar="KEY=VALUE")] = None,
    as_json: Annotated[bool, Option("--json", help="Print it resolved, as JSON.")] = False,
) -> None:
    """Print the YAML of a recipe as it stands, or with every key."""
    from polysem.recipes import as_yaml, load, source

    if as_json:
        typer.echo(load(recipe, override or ()).model_dump_json(indent=2))
        return
    text = as_yaml(load(recipe, override or ())) if resolved or override else source(recipe)
    console = new_console()
    if not console.is_terminal:
        typer.echo(text, nl=False)
        return
    from rich.syntax import Syntax

    console.print(Syntax(text, "yaml", background_color="default", word_wrap=True))


def parts_command(
    folder: Annotated[
        str | None,
        Argument(help=f"Only this folder: {', '.join(FOLDERS)}. Or {PROTOCOLS}, of eval.", show_default="all"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List every encoder, pooling, set predictor, similarity and objective with its knobs and their defaults."""
    if folder not in (None, *FOLDERS, PROTOCOLS):
        raise unknown("folder of parts", folder or "", (*FOLDERS, PROTOCOLS))
    parts = {}
    for name in FOLDERS if folder is None else (folder,):
        module = import_module(f"polysem.evaluation.{name}" if name == PROTOCOLS else f"polysem.{name}")
        parts[name] = [module.describe(part) for part in module.names()]
    if as_json:
        print_json({name: [asdict(part) for part in infos] for name, infos in parts.items()})
        return
    console = new_console()
    for name, infos in parts.items():
        table = new_table(name, "Name", "What it does", "Knobs", show_lines=True)
        table.columns[0].no_wrap = True
        for part in infos:
            knobs = "\n".join(
                f"{knob.name}: {knob.type}" + (", required" if knob.default == "required" else f" = {knob.default}")
                for knob in part.knobs
            )
            table.add_row(part.name, part.summary, knobs)
        console.print(table)
