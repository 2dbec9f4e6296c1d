"""The schema of a recipe: keys, types, bounds and defaults. Parts are checked against their own knobs elsewhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from polysem.dropout import Rate
from polysem.objectives.base import registry as objective_registry
from polysem.registry import Registry
from polysem.sets.base import registry as set_registry

PartConfig = dict[str, Any]
"""A part by its registry name and knobs: {"name": "gpo", "temperature": 0.1}."""

RENAMED: dict[str, Registry[Any]] = {"sets": set_registry, "objective": objective_registry}
"""Keys of a recipe whose parts have former names: a recipe holds the present ones, so that runs can be compared."""


def _rename(key: str) -> AfterValidator:
    def rename(config: PartConfig) -> PartConfig:
        name = config.get("name")
        return {**config, "name": RENAMED[key].current_name(name)} if isinstance(name, str) else config

    return AfterValidator(rename)


SHARED = "shared"
"""The name of `text.sets` where the text side ends in the image side's set predictor itself."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Augment(Section):
    """Size augmentation in training.

    drop: of local features, by VSE∞'s rule for regions or for grids. words: masks, replaces or deletes words.
    rate: of both. protect_ends: <start> and <end> are left alone (VSE∞'s BiGRU code does not).
    pixels: a random part of the picture, at times mirrored.
    """

    drop: Literal["none", "region", "grid"] = "none"
    words: bool = False
    rate: Rate = 0.2
    protect_ends: bool = True
    pixels: bool = False


class TowerRecipe(Section):
    """One tower: encoder -> project -> sets, with a global feature from `pool` or from the encoder.

    local: which features the sets read, the projected ones or the encoder's own.
    frozen_epochs: the encoder's body rests for so many epochs, then trains whole.
    """

    encoder: PartConfig
    project: PartConfig | None = None
    pool: PartConfig | None = None
    local: Literal["projected", "encoded"] = "projected"
    sets: Annotated[PartConfig, _rename("sets")]
    augment: Augment = Augment()
    frozen_epochs: NonNegativeInt = 0

    def tower(self) -> dict[str, Any]:
        """Its parts as `models.build` takes them."""
        parts = self.model_dump(include={"encoder", "project", "pool", "local", "sets"})
        return {**parts, "sets": SHARED if self.sets.get("name") == SHARED else parts["sets"]}


class RegulariserEntry(Section):
    """A part of the loss beside the objective. on: the embeddings, or the residuals before the global feature."""

    name: str
    weight: NonNegativeFloat
    on: Literal["vectors", "residual"] = "vectors"
    knobs: dict[str, Any] = {}


class AuxiliaryEntry(Section):
    """An objective beside the recipe's own, on scores other than those of the sets.

    on: "global", cosines of the global vectors; "elements", each element alone with the other side, averaged;
        "residual", the images' elements before the global vector joined them, as a set.
    weight: what its loss is multiplied by. objective: a part; None for one like the recipe's.
    """

    on: Literal["global", "elements", "residual"]
    weight: NonNegativeFloat = 1.0
    objective: Annotated[PartConfig, _rename("objective")] | None = None


class Phrases(Section):
    """Things that English captions name ("a dog", "a brown dog") as texts to learn from beside the captions: every
    image of a batch brings one of its own, if it has one that no other brought, right for every image any of whose
    captions names it.

    weight: of their loss, which is the objective and the auxiliary losses once more; one that sums over pairs, as
    triplets may, sums over all pairs of a phrase and its images. least, share: only what the
    captions of at least so many training images name, and of at most this share of them.
    """

    weight: PositiveFloat = 1.0
    least: PositiveInt = 3
    share: Annotated[float, Field(gt=0, le=1)] = 0.25


class Teacher(Section):
    """A trained model to learn from beside the pairs (distillation): of each image and each text, a softmax over the
    teacher's scores of the batch is the target of one over the student's.

    model: a folder, or the name of a model that comes with polysem. weight: its share of the loss; the objective has
    the rest. temperature: of both softmaxes. features, text_features: stores of what its frozen encoders make of the
    items; without, they are run once, unless the recipe's own are the same.
    """

    model: str
    weight: Annotated[float, Field(gt=0, le=1)] = 0.5
    temperature: PositiveFloat = 0.05
    features: str | None = None
    text_features: str | None = None


class Optimiser(Section):
    """lr_scales: a factor on `lr` by place, e.g. {"image": 0.1, "text.sets": 0.05}; the longest fitting place holds.
    frozen: places of parts that never change, e.g. ["text", "image.sets.base"]: their batch norm and dropout rest too.
    clip: largest norm of all gradients together; None lets them be."""

    name: Literal["adamw", "adam"] = "adamw"
    lr: PositiveFloat
    weight_decay: NonNegativeFloat = 0.0
    lr_scales: dict[str, NonNegativeFloat] = {}
    frozen: list[str] | None = None
    clip: PositiveFloat | None = None


class Schedule(Section):
    """How the learning rate goes.

    constant
    step         times gamma at each epoch of `milestones`, or after `every` so many epochs
    cosine       to 0 over all steps, step by step
    compounding  VSE+2AD's released code: times gamma ** (epoch // every) in every epoch anew, which compounds

    warmup_steps: a linear ramp at the beginning. ramp_epoch: a linear ramp through that one epoch (VSE∞ on grids, when
    the backbone begins to train), of the learning rate, or of the loss as the released code does.
    """

    name: Literal["constant", "step", "cosine", "compounding"] = "constant"
    milestones: list[NonNegativeInt] = []
    every: PositiveInt | None = None
    gamma: PositiveFloat = 0.1
    warmup_steps: NonNegativeInt = 0
    ramp_epoch: NonNegativeInt | None = None
    ramp: Literal["lr", "loss"] = "lr"


class Data(Section):
    """train: splits to learn from, those that exist. val: the split that picks the checkpoint.
    min_count: how often a word must occur to be known to a bigru. glove: start its words from GloVe ("package", or the
    path of a glove.*.txt)."""

    train: list[str] = ["train", "restval"]
    val: str = "val"
    min_count: PositiveInt = 4
    glove: str | None = None


class Training(Section):
    """batch: images in a batch. captions: "one" of each image (an epoch visits each caption once), "all" of them, or a
    number. accumulate: batches per optimiser step (adds no negatives). chunk: images embedded at once; a larger batch
    is cached, with the same gradients and all its negatives. validate_every: epochs."""

    epochs: PositiveInt
    batch: PositiveInt = 128
    captions: Literal["one", "all"] | PositiveInt = "one"
    accumulate: PositiveInt = 1
    chunk: PositiveInt | None = None
    validate_every: PositiveInt = 1
    checkpoint_every: PositiveInt | None = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    seed: NonNegativeInt = 0


class Recipe(Section):
    """A row of a paper's table, or a small version of it.

    start: a trained model, by folder or name, whose parts are taken over where they fit.
    dual: a dual encoder such as CLIP, by folder or name, whose halves are the encoders dual_image and dual_text.
    dim: of the vectors; "labels" for one number per label, "global" for the width of the encoders' global feature.
    """

    name: str
    summary: str
    paper: str = ""
    start: str | None = None
    dual: str | None = None
    dim: PositiveInt | Literal["labels", "global"]
    image: TowerRecipe
    text: TowerRecipe
    similarity: PartConfig
    objective: Annotated[PartConfig, _rename("objective")]
    regularisers: list[RegulariserEntry] = []
    auxiliary: list[AuxiliaryEntry] = []
    phrases: Phrases | None = None
    teacher: Teacher | None = None
    optimiser: Optimiser
    schedule: Schedule = Schedule()
    training: Training
    data: Data = Data()

    def sides(self) -> tuple[tuple[str, TowerRecipe], ...]:
        """Both towers with their names."""
        return ("image", self.image), ("text", self.text)
