"""Several models to one: their vectors become the set of a joined model, and their encoders run once."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from polysem.data import train_overlap
from polysem.errors import InputError
from polysem.models.build import build_similarity
from polysem.models.model import Model
from polysem.models.tower import Tower
from polysem.sets import Ensemble

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
