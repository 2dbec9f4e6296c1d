"""The command line: a thin skin over the library. Commands import what they need when they run.

`polysem --version` and `polysem doctor` answer in a fraction of a second because nothing here loads torch.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer import Option

from polysem._version import __version__
from polysem.cli import data as data_commands
from polysem.cli import demo, doctor, evaluation, index, inspection, models, recipes, reproduce, search, train, weights
from polysem.cli.options import QuickCommand, QuickGroup
from polysem.environment.precision import limit_instruction_set
from polysem.errors import PolysemError

SWEEP = "sweep small-semantic-sharing --data scenes --out sweeps/lambda --set objective.lambda=0,0.001,0.01,0.1,1,10"

app = typer.Typer(
    name="polysem",
    cls=QuickGroup,
    no_args_is_help=True,
    add_completion=False,
    # A plain traceback: a defect is reported best with nothing left out or rearranged.
    pretty_exceptions_enable=False,
    epilog="Example: polysem doctor",
)
data = typer.Typer(cls=QuickGroup, no_args_is_help=True, epilog="Example: polysem data check ~/Pictures")
make = typer.Typer(cls=QuickGroup, no_args_is_help=True, epilog="Example: polysem data make emoji-scenes --out scenes")

# In the order that `polysem --help` lists them; the group, the command, and the example that its help ends with.
for _group, _command, _example in (
    (app, demo.demo_command, "demo --no-serve"),
    (data, data_commands.check_command, "data check flickr8k"),
    (data, data_commands.show_command, "data show flickr8k --out sheet.png"),
    (make, data_commands.make_emoji_scenes_command, "data make emoji-scenes --out scenes --items 2000"),
    (make, data_commands.make_emoji_clips_command, "data make emoji-clips --out clips --items 600"),
    (app, data_commands.features_command, "features flickr8k --encoder grid --out features"),
    (app, train.train_command, "train small-vse-infty --data scenes --out runs/vse-infty"),
    (app, train.finetune_command, "finetune polysem/photo-small --data my-captions --out runs/mine"),
    (app, train.grow_command, "grow runs/vse-infty --k 4 --data scenes --out runs/grown"),
    (app, train.sweep_command, f"{SWEEP} --seeds 0,1,2"),
    (app, evaluation.compare_command, "compare runs/vse-infty runs/dive --data scenes"),
    (app, evaluation.cost_command, "cost small-vse-infty small-dive"),
    (app, evaluation.eval_command, "eval runs/scenes --data scenes --protocol pairs"),
    (app, inspection.explain_command, 'explain runs/dive photo.jpg "a dog on a beach" --out why.png'),
    (app, inspection.map_command, "map runs/dive --data scenes --out map.html"),
    (app, inspection.diagnose_command, "diagnose runs/dive --data scenes --out report.html"),
    (app, models.import_command, "import model_best.pth --from vse-infty --out model"),
    (app, models.join_command, "join runs/seed-0 runs/seed-1 --out runs/both"),
    (app, models.export_command, "export runs/dive --format onnx --out dive-onnx"),
    (app, index.index_command, "index ~/Pictures --out my-index"),
    (app, index.add_command, "add my-index ~/Pictures/new"),
    (app, index.remove_command, "remove my-index holiday/blurred.jpg"),
    (app, search.search_command, 'search my-index "a dog on a beach" --k 5'),
    (app, search.serve_command, "serve my-index"),
    (app, index.stats_command, "stats my-index"),
    (app, index.verify_command, "verify my-index"),
    (app, index.compact_command, "compact my-index"),
    (app, doctor.doctor_command, "doctor --json > environment.json"),
    (app, recipes.parts_command, "parts pooling"),
):
    _name = _command.__name__.removesuffix("_command").removeprefix("make_").replace("_", "-")
    _group.command(_name, cls=QuickCommand, epilog=f"Example: polysem {_example}")(_command)

data.add_typer(make, name="make", help="Make a collection where no data set is at hand.")
app.add_typer(data, name="data", help="Check a collection, show it, or make one.")
app.add_typer(recipes.group, name="recipes", help="List the recipes, or show one.")
app.add_typer(weights.group, name="weights", help="Pretrained weights by name: list, get, verify, path.")
app.add_typer(reproduce.group, name="reproduce", help="Repeat a paper's experiment and compare.")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"polysem {__version__}")
        raise typer.Exit


@app.callback()
def polysem(
    version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Image-text search that keeps every meaning of an image."""


def main() -> None:
    """Run the command line. An error of the user's making is one message on stderr and exit code 1."""
    limit_instruction_set()
    try:
        app(prog_name="polysem")
    except PolysemError as error:
        typer.echo(f"polysem: {error}", err=True)
        sys.exit(1)
