"""The model card: a README that says what a model is, how it was made, how to use it, and what it scored where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from polysem.models.model import Model


def write(model: Model, described: Mapping[str, Any], header: Mapping[str, Any]) -> str:
    """Markdown with the YAML header that the hub reads."""
    provenance = described["provenance"]
    origin = provenance.get("imported", {})
    name = provenance.get("recipe", {}).get("name") or (f"{origin['from']}, imported" if origin else "model")
    front = {
        "library_name": "polysem",
        "tags": ["image-text-retrieval", "visual-semantic-embedding", "polysem"],
        "pipeline_tag": "feature-extraction",
        **header,
    }
    images, texts = model.set_sizes
    unit = model.image.sets.config.get("normalise", True)
    lines = [
        "---",
        yaml.safe_dump(dict(front), sort_keys=False, allow_unicode=True).strip(),
        "---",
        "",
        f"# {name}",
        "",
        provenance.get("recipe", {}).get("summary", "An image–text model of polysem."),
        "",
        f"Each image becomes {images} {'unit ' * unit}vector(s) and each text {texts}, of width {model.dim}; "
        f"sets are compared by `{model.similarity.config['name']}`.",
        "",
        "```python",
        "import polysem",
        "",
        'model = polysem.load("path/to/this/folder")',
        *_example(model),
        "```",
        "",
        *_origin(origin),
        *_scores(provenance),
        "## Parts",
        "",
        "| place | part | parameters |",
        "|---|---|---|",
    ]
    for place, part in model.parts().items():
        count = sum(parameter.numel() for parameter in part.parameters())
        lines.append(f"| {place} | `{part.config['name']}` | {count:,} |")
    lines += ["", f"Fingerprint `{described['fingerprint']}`, made with polysem {described['polysem_version']}.", ""]
    return "\n".join(lines)


def _example(model: Model) -> list[str]:
    texts = 'texts = model.encode_texts(["a dog in the snow", "two people at a table"])'
    if model.image.encoder.takes == "features":
        images = "images = model.encode_images([regions])  # each a (regions, dim) array of precomputed features"
    elif model.image.encoder.kind == "video":
        images = 'images = model.encode_images(["clip.mp4"])'
    else:
        images = 'images = model.encode_images(["photo.jpg"])'
    return [images, texts, "scores = model.similarity(images, texts)  # (images, texts), larger is more alike"]


def _origin(origin: Mapping[str, Any]) -> list[str]:
    """Where imported weights come from. What their authors recorded is shown as theirs: nothing was measured here."""
    if not origin:
        return []
    noted = {"data": origin["data"], "epoch": origin["epoch"], **origin["recorded"]}
    said = ", ".join(f"{name} {value}" for name, value in noted.items() if value not in (None, ""))
    padding = "left out, as in the paper" if origin["variant"] == "paper" else "let in as by the released code"
    return [
        "## Origin",
        "",
        f"Imported from `{origin['file']}`, a checkpoint of the released code of {origin['from']}; padding is "
        f"{padding}. The file says of itself, not measured here: {said or 'nothing'}.",
        "",
    ]


def _scores(provenance: Mapping[str, Any]) -> list[str]:
    best = provenance.get("validation")
    if not best:
        return []
    shown = {name: value for name, value in best.items() if isinstance(value, (int, float))}
    lines = ["## Validation", "", f"{best.get('protocol', '')}", "", "| metric | value |", "|---|---|"]
    lines += [f"| {name} | {value:.2f} |" for name, value in shown.items()]
    return [*lines, ""]
