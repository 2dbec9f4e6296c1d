"""The rows over DINOv2-small tokens in docs/benchmarks/results.md, and the search that settles how each is trained.

All rows share data, features, batches, width, optimiser and schedule. The learning rate, the dropout and the epochs are
searched, with the same number of trials for each row that is searched; an ablation trains as what it ablates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMON = (
    "dim=128",
    "training.batch=256",
    "training.captions=one",
    "optimiser.weight_decay=0.05",
    "optimiser.clip=2.0",
    "schedule={name: cosine, warmup_steps: 20}",
)
RATES = ("2e-3", "6e-3", "1.5e-2")
DROPOUTS = ((0.1, 0.0), (0.4, 0.2))
"""Of the images' and of the texts' heads."""
EPOCHS = (1, 4)
"""Of all captions: an epoch visits every image five times."""

TRIPLET = "objective={name: triplet, margin: 0.2, mining: [[0, all], [1, hardest]], reduction: sum}"
INFONCE = "objective={name: infonce, temperature: 0.05}"
PRINTED = ("image.sets.knobs.variant=paper", "text.sets.knobs.variant=paper", "objective.variant=paper")
LINEAR = "image.project.form=linear"
"""One linear layer, as VSE∞ and DivE have it for grids; their residual MLP is for regions."""
MMD_ALONE = "regularisers=[{name: mmd, weight: 0.01}]"


@dataclass(frozen=True)
class Row:
    """A model of the table: `base` with `settings` laid over what all share.

    searched_as: the row whose search says how this one is trained; its own by default. dropped: the parts of each side
    whose dropout is searched. kind: "single" or "set". twin: of a set, the row of the same parts with one vector.
    equal_bytes: of a set, the row of one vector with as many numbers as all of the set's.
    """

    name: str
    label: str
    base: str
    settings: tuple[str, ...] = ()
    searched_as: str = ""
    dropped: tuple[str, ...] = ("project",)
    kind: str = "single"
    twin: str = ""
    equal_bytes: str = ""

    @property
    def search(self) -> str:
        return self.searched_as or self.name


@dataclass(frozen=True)
class Trial:
    """How a row is trained."""

    rate: str
    dropout: tuple[float, float]
    epochs: int

    def settings(self, row: Row) -> list[str]:
        rates = [
            f"{side}.{part}.dropout={rate}"
            for side, rate in zip(("image", "text"), self.dropout, strict=True)
            for part in row.dropped
        ]
        # Of the last weights only: validations in between take time.
        epochs = [f"training.epochs={self.epochs}", f"training.validate_every={self.epochs}"]
        return [f"optimiser.lr={self.rate}", *rates, *epochs]


@dataclass(frozen=True)
class Grid:
    """What is searched, in stages: the rates, at the first dropout and the fewest epochs; the best rate with every
    dropout, at the second number of epochs; the best of these at each further number."""

    rates: tuple[str, ...] = RATES
    dropouts: tuple[tuple[float, float], ...] = DROPOUTS
    epochs: tuple[int, ...] = EPOCHS

    def stage(self, number: int, best: Trial | None = None) -> list[Trial]:
        """The trials of a stage, from 0. best: of the stage before."""
        if best is None:
            return [Trial(rate, self.dropouts[0], self.epochs[0]) for rate in self.rates]
        if number == 1:
            return [Trial(best.rate, dropout, self.epochs[1]) for dropout in self.dropouts]
        return [Trial(best.rate, best.dropout, self.epochs[number])]


def both(*settings: str) -> tuple[str, ...]:
    """The same of images and of texts."""
    return tuple(f"{side}.{setting}" for setting in settings for side in ("image", "text"))


def vse(
    name: str, label: str, pooling: str, *settings: str, searched_as: str = "", base: str = "small-vse-infty"
) -> Row:
    pooled = both(f"sets.pooling={pooling}")
    return Row(name, label, base, (LINEAR, *pooled, *settings), searched_as)


SIZES = "k: 4, iterations: 4, heads: 4, head_dim: 32, ff_mult: 1, dropout: 0.1"
"""Of the slots: as wide inside as the vectors, half of what the recipes have."""
LIGHT = (*both("sets.head_dim=32"), *both("sets.ff_mult=1"))


def dive(name: str, label: str, *settings: str, base: str = "small-dive", twin: str = "dive-one") -> Row:
    """DivE with something changed, trained as DivE is."""
    sizes = () if any("sets={" in setting for setting in settings) else LIGHT
    own = (LINEAR, *sizes, *settings)
    return Row(name, label, base, own, "dive", kind="set", twin=twin, equal_bytes="vse-infty-wide")


NO_GLOBAL = ("image.pool=null", "text.pool=null", *both("sets.add_global=false"))
CELLS = 17
"""Of DINOv2's 4 x 4 cells with the class token."""
OWN = (
    f"image.sets.cells={CELLS}",
    *both("sets.gamma=0.5"),
    "similarity={name: soft_maximum, alpha: 16}",
    "auxiliary=[{on: global, weight: 1.0}]",
)
LOCAL = (f"image.sets.k={CELLS}", "image.sets.local=6.0", "image.sets.keep_global=true")
PHRASES = "phrases={weight: 0.5}"
WIDE = 128 * (CELLS + 1)
ONE_WIDE = ("image.sets.k=1", f"dim={WIDE}")


def readings(name: str, label: str, *settings: str, **more: str) -> Row:
    """polysem's sets, or one of their parts with one vector."""
    return Row(name, label, "small-sets", (*OWN, *settings), dropped=("sets",), **more)


def pie_net(name: str, label: str, base: str, *settings: str, **more: str) -> Row:
    return Row(name, label, base, settings, dropped=("project", "sets"), **more)


ROWS = (
    # --------------------------------------------------------------------------------------------------- one vector
    vse("vse++", "VSE++", "mean", TRIPLET),
    vse("vse-infty", "VSE∞", "gpo", TRIPLET),
    vse("vse-infty-infonce", "VSE∞ under InfoNCE", "gpo", INFONCE),
    vse("vse-infty-wide", "VSE∞ under InfoNCE, 512 numbers", "gpo", INFONCE, "dim=512"),
    vse(
        "vse-infty-flops", "VSE∞ under InfoNCE, 2,048 numbers", "gpo", INFONCE, "dim=2048", searched_as="vse-infty-wide"
    ),
    vse("mean-infonce", "mean under InfoNCE", "mean", INFONCE, searched_as="vse-infty-infonce"),
    vse("vse-2ad-printed", "VSE+2AD as printed", "adpool", *PRINTED, base="small-vse-2ad"),
    vse("vse-2ad", "VSE+2AD (AdOpt annealed)", "adpool", searched_as="vse-2ad-printed", base="small-vse-2ad"),
    vse("adpool-triplet", "AdPool, triplets", "adpool", TRIPLET, searched_as="vse-infty"),
    vse("adpool-infonce", "AdPool, InfoNCE", "adpool", INFONCE, searched_as="vse-infty-infonce"),
    # --------------------------------------------------------------------------------------------------------- sets
    readings("sets", "polysem's sets, 8 × 1", kind="set", twin="sets-one", equal_bytes="sets-wide"),
    readings("sets-one", "… its K = 1 twin", "image.sets.k=1"),
    readings("sets-wide", "… one vector of its bytes, 1,024 numbers", "image.sets.k=1", "dim=1024"),
    readings(
        "local",
        "local set, 17 cells and the global vector",
        *LOCAL,
        kind="set",
        twin="sets-one",
        equal_bytes="local-wide",
    ),
    readings("local-wide", f"… one vector of its bytes, {WIDE:,} numbers", *ONE_WIDE, searched_as="sets-wide"),
    readings(
        "local-phrases",
        "local set, phrases of captions learned too",
        *LOCAL,
        PHRASES,
        searched_as="local",
        kind="set",
        twin="one-phrases",
        equal_bytes="wide-phrases",
    ),
    readings("one-phrases", "… its K = 1 twin", "image.sets.k=1", PHRASES, searched_as="sets-one"),
    readings(
        "wide-phrases", f"… one vector of its bytes, {WIDE:,} numbers", *ONE_WIDE, PHRASES, searched_as="sets-wide"
    ),
    Row(
        "dive",
        "DivE (smooth-Chamfer)",
        "small-dive",
        (LINEAR, *LIGHT),
        kind="set",
        twin="dive-one",
        equal_bytes="vse-infty-wide",
    ),
    Row("dive-one", "… its K = 1 twin", "small-dive", (LINEAR, *LIGHT, *both("sets.k=1"), MMD_ALONE)),
    dive("dive-chamfer", "DivE (Chamfer)", base="small-dive-chamfer"),
    dive("dive-mil", "DivE (MIL)", base="small-dive-mil"),
    dive("dive-mp", "DivE (MP)", base="small-dive-mp"),
    dive("dive-gamma", "DivE, elements from the global vector (γ)", *both("sets.gamma=0.5")),
    dive(
        "dive-transformer",
        "DivE, transformer for slots",
        f"image.sets={{name: transformer, {SIZES}}}",
        f"text.sets={{name: transformer, {SIZES}, position: sine}}",
    ),
    dive("dive-pie-net", "DivE, PIE-Net for slots", *both("sets={name: pie_net, k: 4}")),
    dive("dive-without-global", "DivE − global feature", *NO_GLOBAL),
    dive("dive-without-learned-slots", "DivE − learned slots", *both("sets.learned_slots=false")),
    pie_net("pvse", "PVSE", "small-pvse", kind="set", twin="pvse-one", equal_bytes="vse-infty-wide"),
    pie_net("pvse-one", "… its K = 1 twin", "small-pvse", *both("sets.k=1"), MMD_ALONE, searched_as="pvse"),
    pie_net("pcme-mp", "PCME-MP", "small-pcme-mp", kind="set", twin="pcme-mp-one", equal_bytes="vse-infty-wide"),
    pie_net("pcme-mp-one", "… its K = 1 twin", "small-pcme-mp", *both("sets.k=1"), searched_as="pcme-mp"),
)


@dataclass(frozen=True)
class Plan:
    """The rows, what all of them share, and the grid of the search."""

    rows: Mapping[str, Row]
    common: tuple[str, ...]
    grid: Grid = Grid()

    @property
    def searched(self) -> list[Row]:
        """Rows with a search of their own, in the order of the table."""
        wanted = {row.search for row in self.rows.values()}
        return [row for row in self.rows.values() if row.name in wanted]

    def settings(self, row: Row, trial: Trial) -> list[str]:
        return [*self.common, *row.settings, *trial.settings(row)]


def plan(file: Path | None = None, only: Sequence[str] = ()) -> Plan:
    """The rows above, or those of a JSON file: {"common": [setting, …], "rows": [{"name": …, "base": …}, …], "grid":
    {"rates": […], "dropouts": [[…, …], …], "epochs": […]}}. only: names of rows, with those they are searched as."""
    made = Plan({row.name: row for row in ROWS}, COMMON) if file is None else _read(file)
    if not only:
        return made
    needed = {*only, *(made.rows[name].search for name in only)}
    return Plan({name: row for name, row in made.rows.items() if name in needed}, made.common, made.grid)


def _read(file: Path) -> Plan:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    rows = []
    for entry in content["rows"]:
        lists = {key: tuple(entry[key]) for key in ("settings", "dropped") if key in entry}
        rows.append(Row(**{"label": entry["name"], **entry, **lists}))
    grid = {key: tuple(map(tuple, held) if key == "dropouts" else held) for key, held in content["grid"].items()}
    return Plan({row.name: row for row in rows}, tuple(content["common"]), Grid(**grid))
