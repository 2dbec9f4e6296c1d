"""Models from configs, and several models joined to one whose sets hold the vectors of all."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from polysem import encoders, pooling, sets, similarity
from polysem.data import train_overlap
from polysem.errors import ConfigError, InputError
from polysem.models.model import Model
from polysem.models.tower import Local, Tower, check_wiring
from polysem.sets import Ensemble
from polysem.sets.base import registry as set_registry


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


SIMILARITY = {"name": "smooth_chamfer", "alpha": 16.0}


def join(models: Sequence[Model], similarity: Mapping[str, Any] = SIMILARITY) -> Model:
    """A model whose sets hold the vectors of all the given ones, on both sides.

    They must read the same encoders, with nothing but a set predictor behind: trained apart, from other seeds say, over
    the same frozen networks. similarity: how the joined sets are compared.
    """
    if len(models) < 2:
        raise InputError(f"Joining takes at least two models, got {len(models)}.")
    towers = {side: _joined(side, [getattr(model, side) for model in models]) for side in ("image", "text")}
    joined = Model(models[0].dim, towers["image"], towers["text"], build_similarity(similarity))
    joined.provenance = _provenance([model.provenance for model in models])
    return joined.eval()


def _provenance(known: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the joined model learned from is what any of them did: protocols refuse to measure on it."""
    data = [each.get("data", {}) for each in known]
    names = dict.fromkeys(str(each["name"]) for each in data if "name" in each)
    shared = dict(data[0]) if all(each == data[0] for each in data) else {"name": " + ".join(names)}
    items = train_overlap.merge_sketches(*(each.get("items", []) for each in data))
    return {
        "data": {**shared, "items": items},
        "selected_on": " + ".join(dict.fromkeys(str(each.get("selected_on", "unknown")) for each in known)),
        "joined": [{key: each[key] for key in ("recipe", "validation") if key in each} for each in known],
    }


def _joined(side: str, towers: Sequence[Tower]) -> Tower:
    first = towers[0]
    made = first.encoder.fingerprint()
    for place, tower in enumerate(towers, 1):
        if tower.project is not None or tower.pool is not None:
            raise InputError(
                f"Model {place} projects or pools its {side} features before its sets read them. Models that can be "
                "joined have a set predictor alone there, such as 'attention_pooling'."
            )
        if tower.sets.dim != first.sets.dim:
            raise InputError(
                f"Model {place} has {side} vectors of width {tower.sets.dim}, the first of {first.sets.dim}: a set has "
                "vectors of one width. Train them with the same dim."
            )
        if tower.encoder.fingerprint() != made:
            raise InputError(
                f"Model {place} has another {side} encoder than the first: other weights, or seen at another size. "
                "Join models that were trained over the same frozen encoders."
            )
    sets = Ensemble(first.sets.dim, [dict(tower.sets.config) for tower in towers], first.encoder.dim)
    for member, tower in zip(sets.members, towers, strict=True):
        member.load_state_dict(tower.sets.state_dict())
    return Tower(copy.deepcopy(first.encoder), sets)
