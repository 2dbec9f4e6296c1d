"""The rows over EfficientNet grids in docs/benchmarks/results.md: which recipe, with which settings, in which table.

Everything that is not the method is the same for all: data, features, batches, steps, width, optimiser and schedule.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMON = (
    "dim=256",
    # One linear layer, as VSE∞ and DivE have it for grids; their residual MLP is for regions.
    "image.project.form=linear",
    "training.batch=64",
    "training.captions=all",
    "optimiser={name: adamw, lr: 2e-3, weight_decay: 1e-4, clip: 2.0}",
    "schedule={name: cosine, warmup_steps: 50}",
)
TRIPLET = "objective={name: triplet, margin: 0.2, mining: [[0, all], [1, hardest]], reduction: sum}"
DIVE = (
    # As small-dive was when these were measured: the maximum for a global feature, triplets.
    "image.pool={name: max}",
    "objective={name: triplet, margin: 0.2, mining: [[0, all], [1, hardest]], reduction: mean}",
)
PVSE = ("objective={name: triplet, margin: 0.1, mining: [[0, all], [1, hardest]], reduction: mean}",)
DECAY = "<decay>"
"""In a setting: the epoch at 15/25 of the row's epochs, where VSE∞ and VSE+2AD lower the rate."""


@dataclass(frozen=True)
class Row:
    """A training run: `base` with `settings` laid over what all share.

    groups: the tables it stands in. longer: how many times the epochs of the others. store: 1 or 2, which image
    features. read_as: another row, whose parts also read the trained weights. keeps_scores: for an ensemble.
    """

    name: str
    label: str
    base: str
    settings: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    longer: int = 1
    store: int = 1
    read_as: str | None = None
    keeps_scores: bool = False


@dataclass(frozen=True)
class Ensemble:
    """The mean score of two rows' models. shift: the second one's seed is so much further on."""

    name: str
    label: str
    group: str
    members: tuple[str, str]
    shift: int = 0


@dataclass(frozen=True)
class Table:
    """A group of rows in print, each compared with the row `reference`. sets: with the spread of the sets."""

    title: str
    reference: str
    sets: bool = False


TABLES: dict[str, Table] = {
    "methods": Table("Methods", "vse-infty", sets=True),
    "objectives": Table("Pooling × objective", "vse-2ad"),
    "adpool": Table("AdPool, level by level", "vse-2ad"),
    "poolings": Table("Aggregators under AdOpt", "vse-2ad"),
    "similarities": Table("Similarities between DivE's sets", "dive", sets=True),
    "slots": Table("DivE's set predictor, part by part", "dive", sets=True),
    "convergence": Table("AdOpt against triplets, twice as long", "long-adopt"),
    "ensembles": Table("Two grids, VSE+2AD", "vse-2ad"),
    "set-ensembles": Table("Two grids, DivE", "dive"),
}
GROUPS = (*TABLES, "defects", "cost")
"""What `--only` knows. Ensembles are joined of runs and trained by none."""


def both(*settings: str) -> tuple[str, ...]:
    """The same of images and of texts."""
    return tuple(f"{side}.{setting}" for setting in settings for side in ("image", "text"))


def pooled(name: str, label: str, *knobs: str) -> Row:
    """VSE+2AD with another aggregator in AdPool's place."""
    settings = both(f"sets.pooling={name}", *(f"sets.knobs.{knob}" for knob in knobs))
    return Row(f"pool-{name}", label, "small-vse-2ad", settings, ("poolings",))


def slotted(name: str, label: str, *settings: str) -> Row:
    return Row(f"dive-{name}", label, "small-dive", (*DIVE, *settings), ("slots",))


SIZES = "iterations: 4, heads: 4, head_dim: 64, ff_mult: 2, dropout: 0.1"
NO_GLOBAL = ("image.pool=null", "text.pool=null", *both("sets.add_global=false"))

ROWS = (
    # ------------------------------------------------------------------------------------------------------- methods
    Row("vse++", "VSE++", "small-vse++", groups=("methods", "objectives")),
    Row("vse-infty", "VSE∞", "small-vse-infty", (TRIPLET,), ("methods", "objectives", "defects", "cost")),
    Row("vse-infty-wide", "VSE∞ of 1,024 numbers", "small-vse-infty", (TRIPLET, "dim=1024"), ("methods",)),
    Row("vse-infty-infonce", "VSE∞ under InfoNCE", "small-vse-infty", (), ("methods", "objectives")),
    Row(
        "vse-2ad",
        "VSE+2AD (AdOpt annealed)",
        "small-vse-2ad",
        groups=("methods", "objectives", "adpool", "poolings", "ensembles", "defects"),
        keeps_scores=True,
    ),
    Row(
        "vse-2ad-printed",
        "VSE+2AD as printed",
        "small-vse-2ad",
        (*both("sets.knobs.variant=paper"), "objective.variant=paper"),
        ("methods",),
    ),
    Row(
        "vse-2ad-official",
        "VSE+2AD as released",
        "small-vse-2ad",
        (*both("sets.knobs.variant=official"), "objective.variant=official"),
        ("methods", "defects"),
    ),
    Row("pvse", "PVSE", "small-pvse", PVSE, ("methods",)),
    Row("pcme-mp", "PCME-MP", "small-pcme-mp", groups=("methods",)),
    Row(
        "dive",
        "DivE (smooth-Chamfer)",
        "small-dive",
        DIVE,
        ("methods", "similarities", "slots", "set-ensembles", "defects"),
        keeps_scores=True,
    ),
    Row("dive-chamfer", "DivE (Chamfer)", "small-dive-chamfer", DIVE, ("methods", "similarities")),
    Row("dive-mil", "DivE (MIL)", "small-dive-mil", DIVE, ("methods", "similarities")),
    Row("dive-mp", "DivE (MP)", "small-dive-mp", DIVE, ("methods", "similarities")),
    # --------------------------------------------------------------------------- pooling, objective, levels of AdPool
    Row("adpool-triplet", "AdPool, triplets", "small-vse-2ad", (TRIPLET,), ("objectives", "adpool")),
    Row(
        "adpool-infonce",
        "AdPool, InfoNCE",
        "small-vse-2ad",
        ("objective={name: infonce, temperature: 0.05}",),
        ("objectives",),
    ),
    Row(
        "pool-mean", "mean (− AdPool)", "small-vse-2ad", both("sets.pooling=mean"), ("objectives", "adpool", "poolings")
    ),
    Row("pool-gpo", "GPO", "small-vse-2ad", both("sets.pooling=gpo"), ("objectives", "poolings")),
    Row(
        "adpool-without-embedding",
        "− embedding level",
        "small-vse-2ad",
        both("sets.knobs.embedding_level=false"),
        ("adpool",),
    ),
    # Without its token level AdPool is SoftPool: one run stands for both.
    Row(
        "pool-softpool",
        "SoftPool (− token level)",
        "small-vse-2ad",
        both("sets.pooling=softpool"),
        ("adpool", "poolings"),
    ),
    Row("adpool-equal", "levels averaged", "small-vse-2ad", both("sets.knobs.balance=false"), ("adpool",)),
    # ---------------------------------------------------------------------------------------------------- aggregators
    pooled("max", "max"),
    Row(
        "pool-manual",
        "5-max and mean (Manual)",
        "small-vse-2ad",
        ("image.sets.pooling=kmax", "image.sets.knobs.k=5", "text.sets.pooling=mean"),
        ("poolings",),
    ),
    pooled("lip", "LIP"),
    pooled("adapool", "AdaPool"),
    pooled("fspool", "FSPool"),
    pooled("selfattention", "SelfAttn"),
    pooled("seq2seq", "Seq2Seq"),
    pooled("gcn", "GCN"),
    # ---------------------------------------------------------------------------------------------------------- slots
    slotted("without-learned-slots", "− learned slots", *both("sets.learned_slots=false")),
    slotted("without-residual-update", "− residual update", *both("sets.residual_update=false")),
    slotted("without-global", "− global feature", *NO_GLOBAL),
    slotted("without-any", "− all three", *NO_GLOBAL, *both("sets.learned_slots=false", "sets.residual_update=false")),
    slotted("pie-net", "PIE-Net", *both("sets={name: pie_net, k: 4}")),
    slotted(
        "transformer",
        "transformer",
        f"image.sets={{name: transformer, k: 4, {SIZES}}}",
        f"text.sets={{name: transformer, k: 4, {SIZES}, position: sine}}",
    ),
    slotted("one", "one slot", *both("sets.k=1"), "regularisers=[{name: mmd, weight: 0.01}]"),
    # ---------------------------------------------------------------------------------------------------- convergence
    Row("long-adopt", "AdOpt", "small-vse-2ad", (), ("convergence",), longer=2),
    Row("long-triplet", "triplets, hardest after one epoch", "small-vse-2ad", (TRIPLET,), ("convergence",), longer=2),
    # ------------------------------------------------------------------------------------------------------ ensembles
    Row("vse-2ad-2", "VSE+2AD, second grid", "small-vse-2ad", (), ("ensembles",), store=2, keeps_scores=True),
    Row("dive-2", "DivE, second grid", "small-dive", DIVE, ("set-ensembles",), store=2, keeps_scores=True),
    # -------------------------------------------------------------------------------------------------------- defects
    Row(
        "dive-official",
        "DivE, padding shared out among the slots",
        "small-dive",
        (*DIVE, *both("sets.variant=official", "project.variant=official")),
        ("defects",),
        read_as="dive",
    ),
    Row(
        "adpool-official",
        "VSE+2AD, padding in AdPool's softmax",
        "small-vse-2ad",
        both("sets.knobs.variant=official"),
        ("defects",),
        read_as="vse-2ad",
    ),
    Row(
        "gpo-official",
        "VSE∞, padding at −10,000 in GPO",
        "small-vse-infty",
        (TRIPLET, *both("sets.knobs.variant=official")),
        ("defects",),
        read_as="vse-infty",
    ),
    Row("adopt-printed", "VSE+2AD, AdOpt as printed", "small-vse-2ad", ("objective.variant=paper",), ("defects",)),
    Row("adopt-official", "VSE+2AD, AdOpt as released", "small-vse-2ad", ("objective.variant=official",), ("defects",)),
    Row(
        "decay-once",
        "VSE+2AD, rate × 0.1 once",
        "small-vse-2ad",
        (f"schedule={{name: step, milestones: [{DECAY}], gamma: 0.1, warmup_steps: 50}}",),
        ("defects",),
        longer=2,
    ),
    Row(
        "decay-compounding",
        "VSE+2AD, decay applied anew in every epoch",
        "small-vse-2ad",
        (f"schedule={{name: compounding, every: {DECAY}, gamma: 0.1, warmup_steps: 50}}",),
        ("defects",),
        longer=2,
    ),
)

ENSEMBLES = (
    Ensemble("vse-2ad both", "VSE+2AD, both grids", "ensembles", ("vse-2ad", "vse-2ad-2")),
    Ensemble("vse-2ad twice", "VSE+2AD, first grid, two seeds", "ensembles", ("vse-2ad", "vse-2ad"), shift=1),
    Ensemble("dive both", "DivE, both grids", "set-ensembles", ("dive", "dive-2")),
    Ensemble("dive twice", "DivE, first grid, two seeds", "set-ensembles", ("dive", "dive"), shift=1),
)

COSTED = ("vse-infty", "vse++", "vse-infty-wide", "vse-2ad", "pvse", "pcme-mp", "dive", "dive-chamfer", "dive-mil")
"""Methods whose cost is measured; the first is what the others are compared with."""


@dataclass(frozen=True)
class Plan:
    """Which rows there are, what all of them share, and for how long they train."""

    rows: Mapping[str, Row]
    common: tuple[str, ...]
    epochs: int

    def settings(self, row: Row, encoder: str | None = None) -> list[str]:
        """All of a row's settings. encoder: what made the image features, as a setting."""
        epochs = row.longer * self.epochs
        own = [setting.replace(DECAY, str(max(1, round(epochs * 15 / 25)))) for setting in row.settings]
        made = [] if encoder is None else [f"image.encoder={encoder}"]
        # Curves are drawn of the longer rows alone; of the others the last weights count, and validations take time.
        often = 1 if row.longer > 1 else epochs
        return [*self.common, f"training.epochs={epochs}", f"training.validate_every={often}", *made, *own]


def plan(epochs: int, file: Path | None = None, more: Sequence[str] = ()) -> Plan:
    """The rows above, or those of a JSON file: {"common": [setting, …], "rows": [{"name": …, "base": …, …}, …]}.
    more: settings of all rows beside what they share anyway."""
    if file is None:
        return Plan({row.name: row for row in ROWS}, (*COMMON, *more), epochs)
    content = json.loads(file.read_text(encoding="utf-8"))
    rows = [_read(entry) for entry in content["rows"]]
    return Plan({row.name: row for row in rows}, (*content["common"], *more), epochs)


def _read(entry: Mapping[str, Any]) -> Row:
    lists: dict[str, Sequence[str]] = {key: tuple(entry.get(key, ())) for key in ("settings", "groups")}
    return Row(**{"label": entry["name"], **entry, **lists})
