"""When in a video the query is: the results' frames, scored as items are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysem.models.video import find_moment
from polysem.search.backend import Backend
from polysem.search.results import Result
from polysem.search.store import Side
from polysem.search.vector_checks import plain_scores

REMARK = "Milvus keeps no frames of videos: they are found without the moment. For that, keep the index in a folder."


def with_moments(backend: Backend, side: Side, found: Sequence[Result], query: NDArray[Any]) -> list[Result]:
    """The same results; those that are videos with the moment that matches the query set (L, D) best."""
    frames = backend.frames(side, [result.id for result in found])
    if not frames:
        return list(found)
    # All in one go: a call for each would cost more than its scores.
    known = [result.id for result in found if result.id in frames]
    sets = np.concatenate([frames[key] for key in known])
    scores = plain_scores(sets, np.asarray(query, np.float32), backend.manifest.similarity)
    ends = np.cumsum([len(frames[key]) for key in known])[:-1]
    curves = dict(zip(known, np.split(scores, ends), strict=True))
    return [
        replace(result, moment=find_moment(curves[result.id], result.metadata.get("duration")))
        if result.id in curves
        else result
        for result in found
    ]
