"""Models from configs, and several models joined to one whose sets hold the vectors of all."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from polysem import encoders, pooling, sets
from polysem.data import train_overlap
from polysem.errors import ConfigError, InputError
from polysem.models.model import Model
from polysem.models.tower import Local, Tower
from polysem.sets import Ensemble
from polysem.sets.base import registry as set_registry
from polysem.similarity import build as build_similarity


def build(dim: int, image: Mapping[str, Any], text: Mapping[str, Any], similarity: Mapping[str, Any]) -> Model:
    """A model whose vectors have width `dim`. `build(**model.config)` makes an untrained twin of a model.

    image, text: {"encoder": …, "project": …, "pool": …, "local": …, "sets": …}, each part as its config; widths left
    out follow from `dim` and the parts before. text["sets"] = "shared" makes both towers end in one and the same part.
    """
    first = build_tower("image", image, dim)
    shared = first.sets if text.get("sets") == "shared" else None
    return Model(dim, first, build_tower("text", text, dim, shared), build_similarity(**similarity))


def build_tower(side: str, config: Mapping[str, Any], dim: int, shared: sets.SetPredictor | None = None) -> Tower:
    """One side of a model, each part built for the widths of those before it. shared: the other side's sets."""

    def build_part(place: str, folder: Any, **widths: int) -> Any:
        if config.get(place) is None:
            return None
        known = {knob.name for knob in folder.describe(config[place]["name"]).knobs}
        return folder.build(**{**{name: width for name, width in widths.items() if name in known}, **config[place]})

    ends = shared or set_registry.find(config["sets"]["name"])
    keeps_width = config.get("project") is not None or ends.projects
    encoder = build_part("encoder", encoders, **({} if keeps_width else {"dim": dim}))
    project = build_part("project", encoders, input_dim=encoder.dim, dim=dim)
    width = encoder.dim if project is None else project.dim
    pool = build_part("pool", pooling, dim=width)
    local: Local = config.get("local") or "projected"
    read = width if local == "projected" else encoder.dim
    predictor = shared or build_part("sets", sets, dim=dim, input_dim=read)
    if predictor.input_dim not in (None, read):
        raise ConfigError(
            f"{side}.sets {'is shared and ' if shared is not None else ''}reads features of width "
            f"{predictor.input_dim}; those of {side} have {read}. Give {side}.project, or the {side} encoder that "
            f"width: {side}.encoder.dim={predictor.input_dim}."
        )
    tokens = encoder.tokens_per_item
    if predictor.cells is not None and tokens not in (None, predictor.cells):
        raise ConfigError(
            f"{side}.sets has a place for each of {predictor.cells} cells, and {side}.encoder "
            f"{encoder.config['name']!r} makes {tokens} local features. Set {side}.sets.cells={tokens}."
        )
    if predictor.needs_global and pool is None and not encoder.makes_summary:
        raise ConfigError(
            f"{side}.sets {predictor.config['name']!r} adds a global feature, and the encoder "
            f"{encoder.config['name']!r} makes none. Give {side}.pool, e.g. {side}.pool.name=max."
        )
    if predictor.needs_global and pool is not None and width != dim:
        raise ConfigError(f"{side}: the global feature has width {width}, the sets {dim}. Give {side}.project.")
    return Tower(encoder, predictor, project, pool, local)


def global_width(encoder: Mapping[str, Any]) -> int:
    """The width of the global feature that an encoder with this config makes."""
    built = encoders.build(**encoder)
    return int(getattr(built, "summary_dim", built.dim))


def joined_similarity(models: Sequence[Model]) -> dict[str, Any]:
    """How the sets of joined models are compared if nothing is said: by smooth-Chamfer; or by their own similarity
    where that is one-sided and the same for all, as the elements of an image are chosen among in any number."""
    configs = [dict(model.similarity.config) for model in models]
    one_sided = not models[0].similarity.symmetric and all(config == configs[0] for config in configs)
    return configs[0] if one_sided else {"name": "smooth_chamfer", "alpha": 16.0}


def join(models: Sequence[Model], similarity: Mapping[str, Any] | None = None) -> Model:
    """A model whose sets hold the vectors of all the given ones, on both sides.

    They must read the same encoders, with nothing but a set predictor behind: trained apart, from other seeds say, over
    the same frozen networks. similarity: how the joined sets are compared; by default `joined_similarity`.
    """
    if len(models) < 2:
        raise InputError(f"Joining takes at least two models, got {len(models)}.")
    image, text = (_join_towers(side, [getattr(model, side) for model in models]) for side in ("image", "text"))
    joined = Model(models[0].dim, image, text, build_similarity(**(similarity or joined_similarity(models))))
    # What the joined model learned from is what any of them did: protocols refuse to measure on it.
    known = [model.provenance for model in models]
    data = [each.get("data", {}) for each in known]
    names = dict.fromkeys(str(each["name"]) for each in data if "name" in each)
    shared = dict(data[0]) if all(each == data[0] for each in data) else {"name": " + ".join(names)}
    items = train_overlap.merge_sketches(*(each.get("items", []) for each in data))
    joined.provenance = {
        "data": {**shared, "items": items},
        "selected_on": " + ".join(dict.fromkeys(str(each.get("selected_on", "unknown")) for each in known)),
        "joined": [{key: each[key] for key in ("recipe", "validation") if key in each} for each in known],
    }
    return joined.eval()


def _join_towers(side: str, towers: Sequence[Tower]) -> Tower:
    first = towers[0]
    made = first.encoder.fingerprint()
    for place, tower in enumerate(towers, 1):
        if tower.project is not None or tower.pool is not None:
            raise InputError(f"Model {place} projects or pools its {side} features. Join models with sets alone there.")
        other = tower.encoder.fingerprint() != made
        if other and any(isinstance(each.encoder, (encoders.DualImage, encoders.DualText)) for each in (first, tower)):
            raise InputError(
                f"Model {place} reads another {side} encoder than the first, and one of them is a dual encoder such as "
                "CLIP: each has a space of its own. Join models over the same one, or compare these: `polysem compare`."
            )
        if tower.sets.dim != first.sets.dim:
            dims = f"{tower.sets.dim}, the first of {first.sets.dim}"
            raise InputError(f"Model {place} has {side} vectors of width {dims}. Train them with the same dim.")
        if other:
            raise InputError(
                f"Model {place} has another {side} encoder than the first: other weights, or seen at another size. "
                "Join models that were trained over the same frozen encoders."
            )
    sets = Ensemble(first.sets.dim, [dict(tower.sets.config) for tower in towers], first.encoder.dim)
    for member, tower in zip(sets.members, towers, strict=True):
        member.load_state_dict(tower.sets.state_dict())
    return Tower(copy.deepcopy(first.encoder), sets)
