"""From configs to a model: every part gets the widths of its neighbours, so that a recipe need not repeat them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polysem import encoders, pooling, sets, similarity
from polysem.errors import ConfigError
from polysem.models.model import Model
from polysem.models.tower import Local, Tower, check_wiring
from polysem.sets.base import registry as set_registry

TOWER_KEYS = ("encoder", "project", "pool", "local", "sets")


def build(dim: int, image: Mapping[str, Any], text: Mapping[str, Any], similarity: Mapping[str, Any]) -> Model:
    """A model whose vectors have width `dim`. `build(**model.config)` makes an untrained twin of a model.

    image, text: {"encoder": …, "project": …, "pool": …, "local": …, "sets": …}, each part as its config; knobs left
    out are wired or take their defaults. text["sets"] = "shared" makes both towers end in one and the same part.
    """
    first = build_tower("image", image, dim)
    shared = first.sets if text.get("sets") == "shared" else None
    return Model(dim, first, build_tower("text", text, dim, shared), build_similarity(similarity))


def build_similarity(config: Mapping[str, Any]) -> similarity.Similarity:
    return similarity.build(**config)


def build_tower(side: str, config: Mapping[str, Any], dim: int, shared: sets.SetPredictor | None = None) -> Tower:
    projected = config.get("project") is not None
    ends = shared or set_registry.find(config["sets"]["name"])
    encoder = encoders.build(**_wired(encoders, config["encoder"], {} if projected or ends.projects else {"dim": dim}))
    project = None
    if projected:
        project = encoders.build(**_wired(encoders, config["project"], {"input_dim": encoder.dim, "dim": dim}))
    width = encoder.dim if project is None else project.dim
    pool = None
    if config.get("pool") is not None:
        pool = pooling.build(**_wired(pooling, config["pool"], {"dim": width}))
    local: Local = config.get("local") or "projected"
    read = width if local == "projected" else encoder.dim
    predictor = shared or sets.build(**_wired(sets, config["sets"], {"dim": dim, "input_dim": read}))
    if predictor.input_dim not in (None, read):
        raise ConfigError(
            f"{side}.sets {'is shared and ' if shared is not None else ''}reads features of width "
            f"{predictor.input_dim}; those of {side} have {read}. Give {side}.project, or the {side} encoder that "
            f"width: {side}.encoder.dim={predictor.input_dim}."
        )
    tower = Tower(encoder, predictor, project, pool, local)
    check_wiring(tower, side)
    if predictor.needs_global and pool is not None and width != dim:
        raise ConfigError(f"{side}: the global feature has width {width}, the sets {dim}. Give {side}.project.")
    return tower


def _wired(folder: Any, config: Mapping[str, Any], widths: Mapping[str, int]) -> dict[str, Any]:
    known = {knob.name for knob in folder.describe(config["name"]).knobs}
    return {**{name: width for name, width in widths.items() if name in known}, **config}
