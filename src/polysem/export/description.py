"""polysem_export.json: all that someone needs who uses the graphs without polysem."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from polysem._version import __version__
from polysem.encoders import BiGRU, Transformer
from polysem.export.graphs import Graph, Port, TextGraph
from polysem.export.parity import Agreement
from polysem.export.tracing import OPSET, ExportError
from polysem.models import Model

FILE = "polysem_export.json"
TOKENIZER, VOCABULARY = "tokenizer.json", "vocabulary.json"
FORMAT = 1


def describe(
    model: Model, graphs: dict[str, Graph], agreements: dict[str, Agreement], tolerance: float, folder: Path
) -> dict[str, Any]:
    """JSON-able; what tokenises texts is written into the folder beside it."""
    return {
        "format": FORMAT,
        "polysem_version": __version__,
        "fingerprint": model.fingerprint(),
        "opset": OPSET,
        "image": {**_ports("image", graphs), **_image(model)},
        "text": {**_ports("text", graphs), **_text(model, graphs["text"], folder)},
        "similarity": {**_ports("similarity", graphs), **_similarity(model)},
        "checked": {
            "tolerance": tolerance,
            "towers": {
                name: {
                    "max_difference": found.difference,
                    "max_difference_alone": found.alone,
                    "batches": found.batches,
                }
                for name, found in agreements.items()
            },
        },
        "model": model.config,
    }


def _ports(name: str, graphs: dict[str, Graph]) -> dict[str, Any]:
    graph = graphs[name]
    return {
        "file": f"{name}.onnx",
        "inputs": [_port(port) for port in graph.inputs],
        "output": _port(graph.output),
    }


def _port(port: Port) -> dict[str, Any]:
    return {"name": port.name, "dtype": port.dtype, "shape": list(port.shape)}


def _image(model: Model) -> dict[str, Any]:
    encoder: Any = model.image.encoder
    common = {"unit_length": _unit_length(model.image.sets), "vectors": model.image.sets.k}
    if encoder.takes == "features":
        meaning = "feature_mask is 1 for a real region and 0 for padding; real ones come first, each image has one."
        return {**common, "preprocessing": None, "note": f"Precomputed local features. {meaning}"}
    seen = encoder.preprocessing
    return {
        **common,
        "preprocessing": {
            "size": seen.size,
            "resize": seen.resize,
            "interpolation": seen.interpolation,
            "reducing_gap": 3.0,
            "mean": list(seen.mean),
            "std": list(seen.std),
            "steps": [
                "turn the picture as its EXIF orientation says, lay it on white, convert it to RGB",
                "stretch it to size x size" if seen.resize == "stretch" else "cut out the central square, resize it",
                "divide by 255, subtract mean, divide by std; channels first",
            ],
        },
    }


def _text(model: Model, graph: Graph, folder: Path) -> dict[str, Any]:
    encoder: Any = model.text.encoder
    limit = graph.max_tokens if isinstance(graph, TextGraph) else None
    common = {
        "unit_length": _unit_length(model.text.sets),
        "vectors": model.text.sets.k,
        "max_tokens": limit,
        "note": "attention_mask is 1 for a real token and 0 for padding; real ones come first. What stands in the "
        "padding has no effect.",
    }
    if isinstance(encoder, Transformer) and encoder.tokenizer is not None:
        _save_tokenizer(encoder, folder / TOKENIZER)
        return {**common, "tokenizer": {"file": TOKENIZER, "kind": "tokenizers", "special_tokens": True}}
    if isinstance(encoder, BiGRU) and encoder.vocabulary is not None:
        encoder.vocabulary.save(folder / VOCABULARY)
        rule = (
            "lower-case words by Treebank's conventions (polysem.data.vocabulary.tokenise), between <start> and <end>"
        )
        return {**common, "tokenizer": {"file": VOCABULARY, "kind": "words", "rule": rule}}
    return {**common, "tokenizer": None}


def _save_tokenizer(encoder: Transformer, path: Path) -> None:
    from tokenizers import Tokenizer

    backend = getattr(encoder.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ExportError(
            f"The tokenizer {type(encoder.tokenizer).__name__} has no fast form, so there is no {TOKENIZER} to write."
        )
    # A copy: the original's padding and truncation are those of its last call.
    own = Tokenizer.from_str(backend.to_str())
    own.no_padding()
    own.enable_truncation(encoder.max_length)
    own.save(str(path))


def _similarity(model: Model) -> dict[str, Any]:
    similarity = model.similarity
    learned = {name: float(value) for name, value in similarity.state_dict().items()}
    knobs = {name: value for name, value in similarity.config.items() if name != "budget_mb"}
    return {**knobs, **learned, "meaning": inspect.getdoc(type(similarity)), "larger_is_more_alike": True}


def _unit_length(sets: Any) -> bool:
    return bool(getattr(sets, "normalise", True))
