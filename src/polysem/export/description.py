"""polysem_export.json: all that someone needs who uses the graphs without polysem."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polysem._version import __version__
from polysem.encoders import BiGRU, Transformer
from polysem.export.graphs import OPSET, ExportError, Graph, TextGraph
from polysem.models import Model, Tower

FILE, TOKENIZER, VOCABULARY = "polysem_export.json", "tokenizer.json", "vocabulary.json"
FORMAT = 1


def describe(model: Model, graphs: dict[str, Graph], folder: Path) -> dict[str, Any]:
    """JSON-able; what tokenises texts is written into the folder beside it."""
    ports = {
        name: {
            "file": f"{name}.onnx",
            "inputs": [asdict(port) for port in graph.inputs],
            "output": asdict(graph.output),
        }
        for name, graph in graphs.items()
    }
    similarity = model.similarity
    learned = {name: float(value) for name, value in similarity.state_dict().items()}
    knobs = {name: value for name, value in similarity.config.items() if name != "budget_mb"}
    meaning = {"meaning": inspect.getdoc(type(similarity)), "larger_is_more_alike": True}
    return {
        "format": FORMAT,
        "polysem_version": __version__,
        "fingerprint": model.fingerprint(),
        "opset": OPSET,
        "image": {**ports["image"], **_describe_sets(model.image), **_describe_images(model)},
        "text": {**ports["text"], **_describe_sets(model.text), **_describe_texts(model, graphs["text"], folder)},
        "similarity": {**ports["similarity"], **knobs, **learned, **meaning},
    }


def _describe_sets(tower: Tower) -> dict[str, Any]:
    return {"unit_length": bool(getattr(tower.sets, "normalise", True)), "vectors": tower.sets.k}


def _describe_images(model: Model) -> dict[str, Any]:
    encoder: Any = model.image.encoder
    if encoder.takes == "features":
        meaning = "feature_mask is 1 for a real region and 0 for padding; real ones come first, each image has one."
        return {"preprocessing": None, "note": f"Precomputed local features. {meaning}"}
    seen = encoder.preprocessing
    steps = [
        "turn the picture as its EXIF orientation says, lay it on white, convert it to RGB",
        "stretch it to size x size" if seen.resize == "stretch" else "cut out the central square, resize it",
        "divide by 255, subtract mean, divide by std; channels first",
    ]
    return {"preprocessing": {**asdict(seen), "reducing_gap": 3.0, "steps": steps}}


def _describe_texts(model: Model, graph: Graph, folder: Path) -> dict[str, Any]:
    encoder, tokenizer = model.text.encoder, None
    if isinstance(encoder, Transformer) and encoder.tokenizer is not None:
        _save_tokenizer(encoder, folder / TOKENIZER)
        tokenizer = {"file": TOKENIZER, "kind": "tokenizers", "special_tokens": True}
    elif isinstance(encoder, BiGRU) and encoder.vocabulary is not None:
        encoder.vocabulary.save(folder / VOCABULARY)
        rule = (
            "lower-case words by Treebank's conventions (polysem.data.vocabulary.tokenise), between <start> and <end>"
        )
        tokenizer = {"file": VOCABULARY, "kind": "words", "rule": rule}
    return {
        "max_tokens": graph.max_tokens if isinstance(graph, TextGraph) else None,
        "note": "attention_mask is 1 for a real token and 0 for padding; real ones come first. What stands in the "
        "padding has no effect.",
        "tokenizer": tokenizer,
    }


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
