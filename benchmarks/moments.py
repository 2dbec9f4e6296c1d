"""How often a search for a moment finds it: `python benchmarks/moments.py RUN CLIPS`, with CLIPS of `polysem data make
emoji-clips`.

For every moment of every clip of the split, its caption in `moments.json` (which no model has trained on) is the query.
The frames of its clip are scored as a search scores them: each as a video of its own, under the model's similarity. The
moment counts as found when the time of the best frame lies in the true segment. Chance is the share of its clip that a
moment takes. How often the query ranks its own clip first among all of the split is told too: several clips may show
what it says.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

import polysem
from polysem.data import FeatureStore, open_collection
from polysem.data.video import frame_times
from polysem.encoders import PixelEncoder
from polysem.models.tower import Inputs
from polysem.models.video import embed_with_frames, find_moment


def measure(run: Path, clips: Path, split: str, features: Path | None = None) -> dict[str, object]:
    """features: a store of the model's encoder, to spare the decoding."""
    store = None if features is None else FeatureStore.open(features)
    model, collection = polysem.load(run), open_collection(clips).split(split)
    truth = json.loads((clips / "moments.json").read_text(encoding="utf-8"))
    right, among, chance, overlaps = 0, 0, 0.0, []
    by_action: dict[str, list[bool]] = defaultdict(list)
    missed: Counter[str] = Counter()
    clip_sets: list[Tensor] = []
    query_sets: list[Tensor] = []
    owners: list[int] = []
    for item in collection:
        if store is None:
            given: Inputs = cast(PixelEncoder, model.image.encoder).read(item.media.path)[None]
        else:
            given = store.batch(store.positions([item.id]))
        with torch.inference_mode():
            whole, [frames] = embed_with_frames(model.image, given)
        duration = float(item.metadata["duration"])
        times = frame_times(len(frames), duration)
        queries = model.encode_texts([moment["caption"] for moment in truth[item.id]])
        clip_sets.append(whole)
        query_sets.append(queries)
        owners += [len(clip_sets) - 1] * len(queries)
        curves = model.similarity(frames, queries).numpy().T
        for moment, curve in zip(truth[item.id], curves, strict=True):
            found = find_moment(curve, duration)
            best = times[int(curve.argmax())]
            hit = moment["start"] <= best < moment["end"]
            right, among = right + hit, among + 1
            chance += (moment["end"] - moment["start"]) / duration
            overlaps.append(_overlap((found.start, found.end), (moment["start"], moment["end"])))
            by_action[moment["action"]].append(hit)
            if not hit:
                missed[moment["object"]] += 1
    scores = model.similarity(torch.cat(clip_sets), torch.cat(query_sets))
    first = float((scores.argmax(0) == torch.tensor(owners)).float().mean())
    return {
        "clips": len(collection),
        "queries": among,
        "best frame in the segment": round(right / among, 4),
        "own clip first of all": round(first, 4),
        "by chance": round(chance / among, 4),
        "mean overlap (IoU) of the part found": round(float(np.mean(overlaps)), 4),
        "by action": {name: round(float(np.mean(hits)), 3) for name, hits in sorted(by_action.items())},
        "missed most": dict(missed.most_common(8)),
    }


def _overlap(a: tuple[float | None, float | None], b: tuple[float, float]) -> float:
    start, end = a
    if start is None or end is None:
        return 0.0
    common = max(0.0, min(end, b[1]) - max(start, b[0]))
    return common / (end - start + b[1] - b[0] - common)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("clips", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--features", type=Path)
    given = parser.parse_args()
    print(json.dumps(measure(given.run, given.clips, given.split, given.features), indent=2))
