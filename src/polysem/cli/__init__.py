"""The command line: a thin skin over the library. Commands import what they need when they run.

`polysem --version` and `polysem doctor` answer in a fraction of a second because nothing here loads torch.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from polysem._version import __version__
from polysem.cli.compare import compare_command
from polysem.cli.cost import cost_command
from polysem.cli.data import check_command, show_command
from polysem.cli.demo import demo_command
from polysem.cli.diagnose import diagnose_command
from polysem.cli.doctor import report
from polysem.cli.eval import eval_command
from polysem.cli.explain import explain_command
from polysem.cli.export import export_command
from polysem.cli.fast_help import QuickCommand, QuickGroup
from polysem.cli.features import extract_features
from polysem.cli.import_checkpoint import import_command
from polysem.cli.index import add_command, index_command
from polysem.cli.index_admin import compact_command, remove_command, stats_command, verify_command
from polysem.cli.join import join_command
from polysem.cli.make_data import make_emoji_clips_command, make_emoji_scenes_command
from polysem.cli.map import map_command
from polysem.cli.parts import catalogue
from polysem.cli.recipes import group as recipes_group
from polysem.cli.reproduce import group as reproduce_group
from polysem.cli.search import search_command
from polysem.cli.serve import serve_command
from polysem.cli.sweep import sweep_command
from polysem.cli.train import train_command
from polysem.environment.precision import limit_instruction_set
from polysem.errors import PolysemError

app = typer.Typer(
    name="polysem",
    cls=QuickGroup,
    no_args_is_help=True,
    add_completion=False,
    # A plain traceback: a defect is reported best with nothing left out or rearranged.
    pretty_exceptions_enable=False,
    epilog="Example: polysem doctor",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"polysem {__version__}")
        raise typer.Exit


@app.callback()
def polysem(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Image-text search that keeps every meaning of an image."""


app.command("demo", cls=QuickCommand, epilog="Example: polysem demo --no-serve")(demo_command)

data = typer.Typer(cls=QuickGroup, no_args_is_help=True, epilog="Example: polysem data check ~/Pictures")
data.command("check", cls=QuickCommand, epilog="Example: polysem data check flickr8k")(check_command)
data.command("show", cls=QuickCommand, epilog="Example: polysem data show flickr8k --out sheet.png")(show_command)
make = typer.Typer(cls=QuickGroup, no_args_is_help=True, epilog="Example: polysem data make emoji-scenes --out scenes")
make.command(
    "emoji-scenes", cls=QuickCommand, epilog="Example: polysem data make emoji-scenes --out scenes --items 2000"
)(make_emoji_scenes_command)
make.command("emoji-clips", cls=QuickCommand, epilog="Example: polysem data make emoji-clips --out clips --items 600")(
    make_emoji_clips_command
)
data.add_typer(make, name="make", help="Make a collection where no data set is at hand.")
app.add_typer(data, name="data", help="Check a collection, show it, or make one.")

app.add_typer(recipes_group, name="recipes", help="List the recipes, or show one.")
app.command("features", cls=QuickCommand, epilog="Example: polysem features flickr8k --encoder grid --out features")(
    extract_features
)
app.command(
    "train", cls=QuickCommand, epilog="Example: polysem train small-vse-infty --data scenes --out runs/vse-infty"
)(train_command)
app.command(
    "sweep",
    cls=QuickCommand,
    epilog="Example: polysem sweep small-semantic-sharing --data scenes --out sweeps/lambda "
    "--set objective.lambda=0,0.001,0.01,0.1,1,10 --seeds 0,1,2",
)(sweep_command)
app.command("compare", cls=QuickCommand, epilog="Example: polysem compare runs/vse-infty runs/dive --data scenes")(
    compare_command
)
app.command("cost", cls=QuickCommand, epilog="Example: polysem cost small-vse-infty small-dive")(cost_command)
app.command("eval", cls=QuickCommand, epilog="Example: polysem eval runs/scenes --data scenes --protocol pairs")(
    eval_command
)
app.command(
    "explain", cls=QuickCommand, epilog='Example: polysem explain runs/dive photo.jpg "a dog on a beach" --out why.png'
)(explain_command)
app.command("map", cls=QuickCommand, epilog="Example: polysem map runs/dive --data scenes --out map.html")(map_command)
app.command("diagnose", cls=QuickCommand, epilog="Example: polysem diagnose runs/dive --data scenes --out report.html")(
    diagnose_command
)
app.command("import", cls=QuickCommand, epilog="Example: polysem import model_best.pth --from vse-infty --out model")(
    import_command
)
app.command("join", cls=QuickCommand, epilog="Example: polysem join runs/seed-0 runs/seed-1 --out runs/both")(
    join_command
)
app.command("export", cls=QuickCommand, epilog="Example: polysem export runs/dive --format onnx --out dive-onnx")(
    export_command
)
app.command("index", cls=QuickCommand, epilog="Example: polysem index ~/Pictures --out my-index")(index_command)
app.command("add", cls=QuickCommand, epilog="Example: polysem add my-index ~/Pictures/new")(add_command)
app.command("remove", cls=QuickCommand, epilog="Example: polysem remove my-index holiday/blurred.jpg")(remove_command)
app.command("search", cls=QuickCommand, epilog='Example: polysem search my-index "a dog on a beach" --k 5')(
    search_command
)
app.command("serve", cls=QuickCommand, epilog="Example: polysem serve my-index")(serve_command)
app.command("stats", cls=QuickCommand, epilog="Example: polysem stats my-index")(stats_command)
app.command("verify", cls=QuickCommand, epilog="Example: polysem verify my-index")(verify_command)
app.command("compact", cls=QuickCommand, epilog="Example: polysem compact my-index")(compact_command)
app.add_typer(reproduce_group, name="reproduce", help="Carry out a paper's experiment again and compare.")
app.command("doctor", cls=QuickCommand, epilog="Example: polysem doctor --json > environment.json")(report)
app.command("parts", cls=QuickCommand, epilog="Example: polysem parts pooling")(catalogue)


def main() -> None:
    """Run the command line. An error of the user's making is one message on stderr and exit code 1."""
    limit_instruction_set()
    try:
        app(prog_name="polysem")
    except PolysemError as error:
        typer.echo(f"polysem: {error}", err=True)
        sys.exit(1)
