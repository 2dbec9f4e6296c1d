"""What the index holds, looked at for the page: what one can filter by, the map, and how sets and slots are used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from polysem.server.jobs import Report
from polysem.server.responses import MapAnswer

if TYPE_CHECKING:
    from polysem.search import Index
    from polysem.search.store import Item, Side

LOOKED_AT = 20_000
"""Items whose labels and metadata are counted; of more, some are drawn by lot."""
LABELS, VALUES, NAMES = 50, 30, 20
SAMPLE = 1000
"""Items of each side on which sets and slots are measured."""
_LONG = 60
"""Characters of a metadata value beyond which it is prose, and nothing to choose from a list."""


def version(index: Index) -> Hashable:
    """Changes with the index: what was worked out for another version is out of date."""
    found = index.stats()
    return tuple(sorted(found.by_side.items())), found.dead, found.segments, found.change


def filters(index: Index) -> dict[str, dict[str, Any]]:
    """Of each side, labels and metadata of its items, and how many have each."""
    sides = index.stats().by_side
    return {side: _filters(index.sample(side, LOOKED_AT), count) for side, count in sides.items()}  # type: ignore[arg-type]


def _filters(items: Sequence[Item], total: int) -> dict[str, Any]:
    labels: Counter[str] = Counter()
    values: dict[str, Counter[tuple[bool, Any]]] = {}
    for item in items:
        labels.update(set(item.labels))
        for name, value in item.metadata.items():
            if isinstance(value, str | int | float) and name != "item":
                values.setdefault(name, Counter())[isinstance(value, bool), value] += 1  # True and 1 are two things
    described = [_described(name, counts) for name, counts in sorted(values.items(), key=lambda pair: -pair[1].total())]
    return {
        "labels": labels.most_common(LABELS),
        "metadata": [each for each in described if each is not None][:NAMES],
        "of": len(items),
        "sampled": len(items) < total,
    }


def _described(name: str, counts: Counter[tuple[bool, Any]]) -> dict[str, Any] | None:
    numbers = [value for boolean, value in counts if not boolean and not isinstance(value, str)]
    if len(numbers) == len(counts):
        return {"name": name, "kind": "number", "min": min(numbers), "max": max(numbers)}
    # Values as they are, for filters keep true, 1 and '1' apart.
    chosen = [(value, count) for (_, value), count in counts.most_common() if len(str(value)) <= _LONG]
    if not chosen or (len(chosen) > VALUES and chosen[0][1] == 1):  # as good as an id
        return None
    return {"name": name, "kind": "choice", "values": chosen[:VALUES]}


def space(index: Index, method: str, limit: int, report: Report) -> bytes:
    """The map, elements of images and texts in the plane, as the JSON of a `MapAnswer`: thousands of points are written
    out once, not for every reader."""
    from polysem.inspection.map import Points, lay_out

    sides = []
    for side, count in index.stats().by_side.items():
        items = _spread(index, side, min(count, limit))  # type: ignore[arg-type]
        if items:
            sides.append(
                Points(
                    index.vectors(side, [item.id for item in items]).astype("float32"),  # type: ignore[arg-type]
                    side,  # type: ignore[arg-type]
                    [item.id for item in items],
                    [item.caption or item.id for item in items],
                    [item.labels for item in items],
                    [str(item.metadata.get("item", item.id)) for item in items],
                )
            )
    if not sides:
        return _written([], 0, [], ["The index is empty."])
    found = lay_out(
        sides,
        method=method,  # type: ignore[arg-type]
        limit=max(2, limit),
        progress=lambda _, done, of: report(done / max(of, 1)),
    )
    points = [
        {
            "x": round(float(x), 4),
            "y": round(float(y), 4),
            "side": found.items[item].side,
            "slot": slot,
            "id": found.items[item].id,
            "label": found.items[item].label,
            "caption": found.items[item].text[:200],
        }
        for item, slot, (x, y) in zip(found.item.tolist(), found.slot.tolist(), found.positions.tolist(), strict=True)
    ]
    notes = [*found.notes, *([] if found.labels else ["These items have no labels to colour by."])]
    return _written(points, found.slots, list(found.labels), notes)


def _written(points: list[Any], slots: int, labels: list[str], notes: Sequence[str]) -> bytes:
    made = MapAnswer(ready=True, progress=1.0, points=points, slots=slots, labels=labels, note=" ".join(notes))
    return made.model_dump_json().encode()


def _spread(index: Index, side: Side, count: int) -> list[Item]:
    return [item for item in index.sample(side, count) if item.position >= 0] if count else []


def measured(index: Index) -> dict[str, Any]:
    """How diverse the sets are and which slots do the work, on a sample of the index."""
    import numpy as np
    import torch

    from polysem.inspection.diagnose.sets import spread
    from polysem.inspection.diagnose.slots import usage

    sets: dict[str, Any] = {"image": None, "text": None}
    counts = {"image": 0, "text": 0, "pairs": 0}
    known = index.stats().by_side
    sampled: dict[str, Sequence[Item]] = {side: _spread(index, side, SAMPLE) for side in known if known[side]}  # type: ignore[arg-type]
    for side, items in sampled.items():
        counts[side] = len(items)
        if items and index.manifest.sets[side] > 1:
            vectors = torch.from_numpy(index.vectors(side, [item.id for item in items]).astype(np.float32))  # type: ignore[arg-type]
            found = spread(vectors)
            sets[side] = {
                "elements": found.elements,
                "variance": found.variance,
                "log_variance": found.log_variance,
                "within": found.within,
            }
    slots: dict[str, Any] = {"image": None, "text": None}
    texts = [item for item in sampled.get("text", ()) if isinstance(item.metadata.get("item"), str)]
    owners = list(dict.fromkeys(str(item.metadata["item"]) for item in texts))
    there = {item.id for item in index.items(owners, "image") if item.position >= 0} if owners else set()
    texts = [item for item in texts if item.metadata["item"] in there]
    if texts and max(index.manifest.sets.values()) > 1:
        images = [owner for owner in owners if owner in there]
        number = {owner: place for place, owner in enumerate(images)}
        counts["pairs"] = len(texts)
        both = usage(
            torch.from_numpy(index.vectors("image", images).astype(np.float32)),
            torch.from_numpy(index.vectors("text", [item.id for item in texts]).astype(np.float32)),
            np.array([number[item.metadata["item"]] for item in texts]),
            index.model.similarity,
        )
        slots = {
            side: {"supervision": list(own.supervision), "wins": list(own.wins), "effective": own.effective}
            for side, own in zip(("image", "text"), both, strict=True)
        }
    return {"sets": sets, "slots": slots, "sample": counts}
