"""The map as one page to explore: zoom, pan, hover, switch kinds on and off. It asks for nothing from outside."""

from __future__ import annotations

import json
from html import escape
from importlib import resources

import numpy as np

from polysem.inspection.map.colours import DARK, LIGHT
from polysem.inspection.map.layout import Map
from polysem.inspection.map.picture import classes

_GRAIN = 30_000
"""Positions are whole numbers up to this: finer than any screen."""


def html(found: Map, title: str, colour: str) -> str:
    slots, labels = classes(found, "slot"), classes(found, "label") if found.labels else None
    low = found.positions.min(0)
    width = float((found.positions.max(0) - low).max()) or 1.0
    places = np.rint((found.positions - low) / width * _GRAIN).astype(int)
    content = {
        "x": places[:, 0].tolist(),
        "y": places[:, 1].tolist(),
        "item": found.item.tolist(),
        "slot": found.slot.tolist(),
        "items": [[each.id, each.side, each.text, each.partner] for each in found.items],
        "colourings": [
            {"name": "slot", "of": slots[0].tolist(), "names": slots[1]},
            *([{"name": "label", "of": labels[0].tolist(), "names": labels[1]}] if labels is not None else []),
        ],
        "colour": colour,
        "lines": found.lines.tolist(),
        "light": LIGHT,
        "dark": DARK,
    }
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    files = resources.files("polysem.inspection.map")
    style, script = (files.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    notes = "".join(f"<p>{escape(note)}</p>" for note in found.notes)
    counts = f"{len(found.positions):,} elements of {len(found.items):,} items"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{style}</style></head>
<body>
<header><h1>{escape(title)}</h1><p>{counts}. Each marker is one element of a set.</p></header>
<main>
<div id="stage"><canvas id="map" tabindex="0" role="application"
 aria-label="Map of {counts}. Arrow keys move it, plus and minus zoom, zero shows all, N and P step through the markers,
 Enter holds one, Escape lets go."></canvas><div id="tip" role="status" aria-live="polite" hidden></div></div>
<aside>
<label class="find">Find <input id="find" type="search" placeholder="words of an item" autocomplete="off"></label>
<div id="legend"></div>
<div class="buttons"><button id="closer" title="Zoom in (+)">+</button>
<button id="farther" title="Zoom out (-)">−</button><button id="all" title="Show all (0)">Show all</button></div>
<details><summary>Keys and mouse</summary><p>Drag or arrow keys: move. Wheel, pinch, + and −: zoom. 0: show all.
Point at a marker to read it; click, or N, P and Enter, to hold it: its whole set and its partners stay lit.
Escape: let go.</p></details>
<div class="notes">{notes}</div>
</aside>
</main>
<script id="data" type="application/json">{data}</script>
<script>{script}</script>
</body></html>
"""
