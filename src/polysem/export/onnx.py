"""A model as ONNX files that onnxruntime runs with the same numbers, or no files at all."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import json
import os
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polysem._version import __version__
from polysem.encoders import BiGRU, DualImage, Transformer
from polysem.encoders.cpu.packed_weights import plain_networks
from polysem.environment.packages import install_command
from polysem.errors import ConfigError
from polysem.export.graphs import OPSET, ExportError, Graph, SimilarityGraph, TextGraph, build_graphs
from polysem.models import Model
from polysem.progress import Progress, ignore

FILE, TOKENIZER, VOCABULARY = "polysem_export.json", "tokenizer.json", "vocabulary.json"
FORMAT = 1
TOLERANCE = 1e-4
"""The largest difference of a number of a unit vector. Rounding alone makes a few millionths."""


@dataclass(frozen=True)
class Agreement:
    """How far a written graph is from the model.

    difference: the largest between a number of onnxruntime's and torch's. alone: between an item's numbers in its batch
    and by itself, without padding, both by onnxruntime. batches: how many were tried.
    """

    difference: float
    alone: float
    batches: int


@dataclass(frozen=True)
class Export:
    """Where the files are (with their sizes in bytes) and how well they agree with the model."""

    out: Path
    files: dict[str, int]
    agreements: dict[str, Agreement]

    @property
    def difference(self) -> float:
        """The largest difference of all graphs."""
        return max(max(found.difference, found.alone) for found in self.agreements.values())


def export_onnx(model: Model, out: str | Path, tolerance: float = TOLERANCE, progress: Progress = ignore) -> Export:
    """Write image.onnx, text.onnx, similarity.onnx and polysem_export.json into the folder `out`.

    Each graph is run by onnxruntime and compared with the model, on batches of several sizes and items of several
    lengths, together and alone. Where a number differs by more than `tolerance`, an error says so and nothing is left.
    """
    if not 0 < tolerance < float("inf"):
        raise ConfigError(f"tolerance must be a positive number, got {tolerance}.")
    import_runtime()
    out = Path(out)
    # A copy that can be traced; the caller's own model stays as it is.
    model = copy.deepcopy(model).float().cpu().eval()
    graphs = build_graphs(model)
    agreements: dict[str, Agreement] = {}
    with _replace_export(out) as folder:
        for done, (name, graph) in enumerate(graphs.items()):
            progress("Writing and checking", done, len(graphs))
            write_graph(graph, folder / f"{name}.onnx")
            found = agreements[name] = compare(graph, folder / f"{name}.onnx")
            if max(found.difference, found.alone) > tolerance:
                how = "differs from the model" if found.difference > tolerance else "differs in a batch from alone"
                raise ExportError(
                    f"The {graph.part} as ONNX {how} by up to {max(found.difference, found.alone):.2g}, more than "
                    f"{tolerance:g}. Nothing was written. A wider --tolerance accepts it."
                )
        progress("Writing and checking", len(graphs), len(graphs))
        described = describe(model, graphs, folder)
        described["checked"] = {
            "tolerance": tolerance,
            "towers": {
                name: {"max_difference": a.difference, "max_difference_alone": a.alone, "batches": a.batches}
                for name, a in agreements.items()
            },
        }
        text = json.dumps({**described, "model": model.config}, indent=2, ensure_ascii=False)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")
    return Export(out, {path.name: path.stat().st_size for path in sorted(out.iterdir())}, agreements)


@contextlib.contextmanager
def _replace_export(out: Path) -> Iterator[Path]:
    """A folder beside `out` to write into; it takes its place at the end, and is gone after an error.

    An earlier export there is replaced; a folder with anything else in it is refused.
    """
    if out.exists() and not (out.is_dir() and ((out / FILE).is_file() or not any(out.iterdir()))):
        raise ExportError(f"{out} exists and is not an export of polysem's. Give a folder that does not exist yet.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent, ignore_cleanup_errors=True) as aside:
            new = Path(aside, "new")
            new.mkdir()
            yield new
            if out.exists():
                out.rename(Path(aside, "old"))
            new.rename(out)
    except OSError as error:
        raise ExportError(f"Cannot write the export to {out}: {error.strerror or error}.") from None


# ------------------------------------------------------------------------------------------------------ writing a graph


def write_graph(graph: Graph, path: Path) -> None:
    """Trace the graph and write it as ONNX. Names of the axes that may vary: see its ports."""
    example = max(graph.samples(), key=lambda batch: len(batch[0]))
    ports = (*graph.inputs, graph.output)
    # The exporter warns, and prints the whole graph before it raises.
    with (
        torch.no_grad(),
        freeze_positions(graph, example),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        try:
            # The exporter that traces: the newer one, by torch.export, fixed lengths where GRUs were, and took about
            # ten times as long (docs/decisions.md).
            torch.onnx.export(
                graph,
                example,
                path,
                dynamo=False,
                opset_version=OPSET,
                input_names=[port.name for port in graph.inputs],
                output_names=[graph.output.name],
                dynamic_axes={port.name: port.axes for port in ports if port.axes},
            )
        except (torch.onnx.errors.OnnxExporterError, RuntimeError) as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise ExportError(f"The {graph.part} cannot be written as ONNX: {reason}") from error


@contextlib.contextmanager
def freeze_positions(graph: Graph, example: tuple[Tensor, ...]) -> Iterator[None]:
    """Within, vision transformers take the positions of their patches as a constant, as the pictures' size is one.

    Left to itself, tracing writes down how they were interpolated, by operations that ONNX does not have.
    """
    resizing: list[Any] = [module for module in graph.modules() if hasattr(module, "interpolate_pos_encoding")]
    positions: dict[nn.Module, Tensor] = {}

    def record(*args: Any, module: Any, original: Any, **kwargs: Any) -> Tensor:
        positions[module] = original(*args, **kwargs).detach()
        return positions[module]

    try:
        for module in resizing:
            module.interpolate_pos_encoding = partial(record, module=module, original=module.interpolate_pos_encoding)
        if resizing:
            with plain_networks():
                graph(*example)
        for module in resizing:
            del module.interpolate_pos_encoding
            if module in positions:
                module.interpolate_pos_encoding = lambda *_, constant=positions[module], **__: constant
        yield
    finally:
        for module in resizing:
            module.__dict__.pop("interpolate_pos_encoding", None)


# --------------------------------------------------------------------------------------------- comparing with the model


def compare(graph: Graph, path: Path) -> Agreement:
    """The written graph against the model: several batch sizes and lengths, and each item by itself."""
    session, samples = open_session(path), graph.samples()
    difference = alone = 0.0
    for batch in samples:
        found = _run(session, graph, batch)
        with torch.inference_mode():
            difference = max(difference, _largest_difference(found, graph(*batch).numpy()))
        if isinstance(graph, SimilarityGraph):
            continue
        for row in range(len(found)):
            # The mask, where there is one, comes second.
            stop = int(batch[1][row].sum()) if len(batch) == 2 else None
            one = _run(session, graph, tuple(given[[row], :stop] for given in batch))
            alone = max(alone, _largest_difference(one, found[[row]]))
    return Agreement(difference, alone, len(samples))


def open_session(path: Path) -> Any:
    """onnxruntime, on as many threads as torch uses here."""
    runtime = import_runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    return runtime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])


def import_runtime() -> Any:
    """onnxruntime, or an error that says how to install it."""
    try:
        import_module("onnx")  # which torch.onnx asks for
        return import_module("onnxruntime")
    except ImportError as error:
        raise ExportError(f"The export to ONNX needs {error.name}. Run: {install_command('onnx')}") from None


def _run(session: Any, graph: Graph, batch: tuple[Tensor, ...]) -> Any:
    try:
        return session.run(None, {port.name: x.numpy() for port, x in zip(graph.inputs, batch, strict=True)})[0]
    except Exception as error:  # onnxruntime's own types differ from release to release
        shapes = ", ".join(str(tuple(given.shape)) for given in batch)
        reason = str(error).strip().splitlines()[0]
        raise ExportError(f"onnxruntime cannot run the {graph.part} on inputs of shape {shapes}: {reason}") from error


def _largest_difference(found: Any, expected: Any) -> float:
    if found.shape != expected.shape:
        raise ExportError(f"The graph gives an output of shape {found.shape}, the model one of {expected.shape}.")
    # NaN is never equal: it counts as infinitely far.
    return float(np.nan_to_num(np.abs(found - expected), nan=np.inf).max())


# ------------------------------------------------- polysem_export.json: what a user of the graphs without polysem needs


def describe(model: Model, graphs: dict[str, Graph], folder: Path) -> dict[str, Any]:
    """JSON-able; what tokenises texts is written into the folder beside it."""
    ports: dict[str, dict[str, Any]] = {}
    for name, graph in graphs.items():
        inputs, output = [asdict(port) for port in graph.inputs], asdict(graph.output)
        ports[name] = {"file": f"{name}.onnx", "inputs": inputs, "output": output}
    for name, tower in (("image", model.image), ("text", model.text)):
        ports[name] |= {"unit_length": bool(getattr(tower.sets, "normalise", True)), "vectors": tower.sets.k}
    similarity = model.similarity
    learned = {name: float(value) for name, value in similarity.state_dict().items()}
    knobs = {name: value for name, value in similarity.config.items() if name != "budget_mb"}
    meaning = {"meaning": inspect.getdoc(type(similarity)), "larger_is_more_alike": True}
    return {
        "format": FORMAT,
        "polysem_version": __version__,
        "fingerprint": model.fingerprint(),
        "opset": OPSET,
        "image": {**ports["image"], **_describe_images(model)},
        "text": {**ports["text"], **_describe_texts(model, graphs["text"], folder)},
        "similarity": {**ports["similarity"], **knobs, **learned, **meaning},
    }


def _describe_images(model: Model) -> dict[str, Any]:
    encoder: Any = model.image.encoder
    if encoder.takes == "features":
        meaning = "feature_mask is 1 for a real region and 0 for padding; real ones come first, each image has one."
        return {"preprocessing": None, "note": f"Precomputed local features. {meaning}"}
    seen = encoder.preprocessing
    if isinstance(encoder, DualImage):
        processor = json.loads(encoder.processor.to_json_string())
        steps = [
            "turn the picture as its EXIF orientation says, lay it on white, convert it to RGB",
            "prepare it as the processor says, in the order of transformers: resize, crop, rescale, normalise",
        ]
        return {"preprocessing": {"size": seen.size, "processor": processor, "steps": steps}}
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
    from tokenizers import Tokenizer, normalizers

    backend = getattr(encoder.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ExportError(f"{type(encoder.tokenizer).__name__} has no fast form: there is no {TOKENIZER} to write.")
    # A copy: the original's padding and truncation are those of its last call.
    own = Tokenizer.from_str(backend.to_str())
    own.no_padding()
    if encoder.prepare_text("A") == "a":  # what the encoder does before, the file has to do itself
        own.normalizer = normalizers.Sequence([normalizers.Lowercase(), *([own.normalizer] if own.normalizer else [])])
    own.enable_truncation(encoder.max_length)
    own.save(str(path))
