"""Writes docs/parts.md from the registries: `python docs/make_parts.py`. A test keeps the two in step."""

from pathlib import Path

import polysem
from polysem.registry import PartInfo

FOLDERS = {
    "encoders": "Pictures, texts or precomputed features to local features. `polysem.encoders.build(name, …)`.",
    "pooling": "Local features to one vector. `polysem.pooling.build(name, dim=…)`, called with `LocalFeatures`.",
    "sets": "Local features and a global feature to K unit vectors. `polysem.sets.build(name, dim=…)`.",
    "similarity": "Sets against sets to a score matrix. `polysem.similarity.build(name).scores(a, b)`.",
    "objectives": "Scores and positives to a loss; `mmd` and `diversity` take the two collections of sets.",
}


def section(info: PartInfo) -> list[str]:
    lines = [f"### {info.name}", "", info.summary, ""]
    if info.knobs:
        lines += ["| knob | type | default |", "|---|---|---|"]
        lines += [f"| `{k.name}` | `{k.type.replace('|', chr(92) + '|')}` | `{k.default}` |" for k in info.knobs]
        lines.append("")
    return lines


def page() -> str:
    lines = ["# The parts", "", "Made by `python docs/make_parts.py`; the same as `polysem parts`.", ""]
    for folder, intro in FOLDERS.items():
        module = getattr(polysem, folder)
        lines += [f"## {folder}", "", intro, ""]
        for name in module.names():
            lines += section(module.describe(name))
    return "\n".join(lines)


if __name__ == "__main__":
    Path(__file__).with_name("parts.md").write_text(page(), encoding="utf-8")
