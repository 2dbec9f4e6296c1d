"""The `onnx` image encoder: any exported network as frozen local features, run by ONNX Runtime."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from polysem.encoders import backbones
from polysem.encoders.backbones import Backbone, SourceError
from polysem.encoders.base import registry
from polysem.encoders.grid import area_weights
from polysem.encoders.image import ImageEncoder
from polysem.encoders.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Channels, Interpolation, Preprocessing, Resize
from polysem.environment.packages import install_command
from polysem.errors import ConfigError
from polysem.masked_ops import is_tracing
from polysem.weights import CATALOGUE, WeightsEntry

Layout = Literal["NCHW", "NHWC", "tokens"]


class OnnxGraph(nn.Module):
    """An ONNX file as a module without parameters: its bytes are a buffer, so that they are saved with a model."""

    content: Tensor

    def __init__(self, content: Tensor, output: str | None) -> None:
        """content: (bytes,) of uint8. output: the tensor to return, None for the graph's first output."""
        super().__init__()
        self.register_buffer("content", content)
        self.output = output
        self._sessions: dict[tuple[int, int, int], Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sessions": {}}  # a session can be neither copied nor sent to another process

    @property
    def session(self) -> Any:
        """The graph in ONNX Runtime, on as many threads as torch uses in the thread that asks: 1 in a pool's.

        Opened again when other bytes were loaded.
        """
        stamp = (self.content.data_ptr(), self.content._version)
        threads = torch.get_num_threads()
        session = self._sessions.get((*stamp, threads))
        if session is None:
            session = open_graph(self.content.cpu().numpy().tobytes(), self.output, threads)
            kept = {key: known for key, known in self._sessions.items() if key[:2] == stamp}
            self._sessions = {**kept, (*stamp, threads): session}
        return session

    @property
    def picture(self) -> tuple[int | None, bool]:
        """Side of the pictures that the graph takes, None for any; and whether their channels come last."""
        shape = self.session.get_inputs()[0].shape
        if len(shape) != 4 or 3 not in (shape[1], shape[3]):
            raise ConfigError(f"The graph takes inputs of shape {shape}; pictures are (batch, 3, side, side).")
        last = shape[1] != 3
        side = shape[1] if last else shape[2]
        return (side if isinstance(side, int) else None), last

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, 3, S, S) -> the output, of whatever shape, without gradients."""
        if is_tracing():
            raise ConfigError("An `onnx` image encoder cannot be exported: its network is a graph of its own already.")
        given = self.session.get_inputs()[0]
        x = pixels.detach().cpu().float().numpy()
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if self.picture[1] else x
        x = x.astype(np.float16) if given.type == "tensor(float16)" else x
        # A graph may be exported for so many pictures at a time.
        at_once = given.shape[0] if isinstance(given.shape[0], int) else len(x)
        parts = [self._run(given.name, x[start : start + at_once], at_once) for start in range(0, len(x), at_once)]
        return torch.from_numpy(np.concatenate(parts).astype(np.float32)).to(pixels.device)

    def _run(self, name: str, x: Any, at_once: int) -> Any:
        missing = at_once - len(x)
        padded = np.concatenate([x, np.zeros((missing, *x.shape[1:]), x.dtype)]) if missing else x
        try:
            return self.session.run(None, {name: padded})[0][: len(x)]
        except Exception as error:  # onnxruntime's own types differ from release to release
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(f"ONNX Runtime cannot run the graph on pictures of shape {x.shape}: {reason}") from None


def open_graph(content: bytes, output: str | None, threads: int = 1) -> Any:
    """A session of ONNX Runtime. output: the tensor to cut the graph at; None for its own outputs."""
    try:
        runtime = import_module("onnxruntime")
        onnx = import_module("onnx") if output is not None else None
    except ImportError as error:
        raise ConfigError(f"An onnx encoder needs {error.name}. Run: {install_command('onnx')}") from None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    if onnx is not None:
        with backbones.report_damage("The ONNX graph"):
            model = onnx.load_from_string(content)
        known = [name for node in model.graph.node for name in node.output]
        if output not in known:
            near = [name for name in known if str(output).lower() in name.lower()] or known
            raise ConfigError(f"The graph has no tensor {output!r}. It has {len(known)}, such as {near[-1]!r}.")
        # What follows the tensor is not computed: nothing asks for it.
        del model.graph.output[:]
        model.graph.output.append(onnx.ValueInfoProto(name=output))
        content = model.SerializeToString()
    with backbones.report_damage("The ONNX graph"):
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


@registry.register("onnx")
class Onnx(ImageEncoder):
    """Any exported network as frozen local features, by ONNX Runtime: a feature map's cells or a transformer's tokens.

    `model` is an .onnx file, a folder with one, or a name of `polysem weights list`. `output` is the tensor to cut at,
    by default the graph's first output. `layout` says how that is laid out: a map as NCHW or NHWC, or a sequence of
    tokens, of which those beyond a square grid come first; `cls` keeps the first of these as a class token. It is
    guessed where only one fits. `grid` averages the cells to grid x grid. Pixels are scaled by `mean` and `std`, of
    ImageNet where not given, at the graph's own size. It has no gradients; `dim` adds a projection, which trains.
    """

    def __init__(
        self,
        model: str,
        dim: PositiveInt | None = None,
        output: str | None = None,
        layout: Layout | None = None,
        cls: bool = True,
        grid: PositiveInt | None = None,
        image_size: PositiveInt | None = None,
        resize: Resize = "stretch",
        mean: Channels | None = None,
        std: Channels | None = None,
        interpolation: Interpolation | None = None,
        trainable: Literal["none"] = "none",
        lr_scale: float = 1.0,
        pretrained: bool = True,
        backbone_config: dict[str, Any] | None = None,
    ) -> None:
        known = dict(backbone_config or {})
        if pretrained or not known:
            content = torch.from_numpy(np.fromfile(find_graph(model), dtype=np.uint8))
            graph = OnnxGraph(content, output)
            own, _ = graph.picture
            size = image_size or own or 224
            if own is not None and size != own:
                self.reject_knobs(f"image_size={image_size}: the graph takes pictures of {own} x {own}.")
            known = self._measure(graph(torch.zeros(1, 3, size, size)).shape, layout)
            known |= {"model_type": "onnx", "bytes": len(content), "image_size": size}
        else:
            graph = OnnxGraph(torch.zeros(int(known["bytes"]), dtype=torch.uint8), output)
        seen = Preprocessing(
            size=int(known["image_size"]),
            resize=resize,
            mean=tuple(mean or IMAGENET_MEAN),
            std=tuple(std or IMAGENET_STD),
            interpolation=interpolation or "bicubic",
        )
        super().__init__(Backbone(graph, known), known["width"], dim, seen, trainable, lr_scale)
        self.cells_of_graph = int(known["side"])
        self.side = grid or self.cells_of_graph
        if self.side > self.cells_of_graph:
            self.reject_knobs(f"grid={grid}: the graph gives {self.cells_of_graph} x {self.cells_of_graph} cells.")
        self.register_buffer("average", area_weights(self.side, self.cells_of_graph), persistent=False)
        self.has_cls = cls and known["extra"] > 0

    def _measure(self, shape: torch.Size, layout: Layout | None) -> dict[str, Any]:
        """What an output of this shape holds: layout, width, side of the grid, tokens before it."""
        fitting: dict[Layout, tuple[int, int]] = {}  # layout -> width and cells
        if len(shape) == 3:
            fitting["tokens"] = shape[2], shape[1]
        if len(shape) == 4 and shape[2] == shape[3]:
            fitting["NCHW"] = shape[1], shape[2] * shape[3]
        if len(shape) == 4 and shape[1] == shape[2]:
            fitting["NHWC"] = shape[3], shape[1] * shape[2]
        if (layout is None and len(fitting) != 1) or (layout is not None and layout not in fitting):
            fits = " and ".join(fitting) or "none of NCHW, NHWC and tokens (square maps, or batch x tokens x width)"
            self.reject_knobs(f"layout={layout!r}: the output has the shape {tuple(shape)}, which fits {fits}.")
        chosen = next(iter(fitting)) if layout is None else layout
        width, cells = fitting[chosen]
        side = math.isqrt(cells)
        return {"layout": chosen, "width": width, "side": side, "extra": cells - side**2}

    def tokens(self, pixels: Tensor) -> Tensor:
        out: Tensor = self.backbone(pixels)
        layout = self.backbone_config["layout"]
        if layout == "NCHW":
            out = out.flatten(2).transpose(1, 2)
        elif layout == "NHWC":
            out = out.flatten(1, 2)
        cells = out[:, -(self.cells_of_graph**2) :]
        if self.side != self.cells_of_graph:
            cells = self.get_buffer("average") @ cells
        return torch.cat([out[:, :1], cells], dim=1) if self.has_cls else cells

    def cells(self) -> Tensor:
        return torch.cat([torch.tensor([[0.0, 0.0, 1.0, 1.0]]), super().cells()]) if self.has_cls else super().cells()

    def find_catalogue_weights(self) -> WeightsEntry | None:
        """The entry of `model`, if the graph is the very file that the catalogue knows."""
        entry = CATALOGUE.get(str(self.config.get("model")))
        if entry is None:
            return None
        digest = hashlib.sha256(self.backbone.get_buffer("content").cpu().numpy().tobytes()).hexdigest()
        return entry if [record.sha256 for record in entry.package.files.values()] == [digest] else None

    def resolved_knobs(self) -> Mapping[str, Any]:
        return {**super().resolved_knobs(), "layout": self.backbone_config["layout"]}


def find_graph(model: str) -> Path:
    """The .onnx file of a path, of a folder with one, or of a name of the catalogue."""
    given = Path(model).expanduser()
    if given.is_file():
        return given
    graphs = sorted(given.glob("*.onnx")) if given.is_dir() else []
    if len(graphs) == 1:
        return graphs[0]
    names = [name for name, entry in CATALOGUE.items() if entry.convert is None and _is_graph(entry)]
    if model in names:
        return backbones.locate(model)
    held = f"a folder with {len(graphs)} .onnx files" if given.is_dir() else "no file or folder"
    raise SourceError(
        f"Model {model!r} is {held}. Give the path of an .onnx file, or one of {', '.join(names) or 'the catalogue'} "
        "(polysem weights get NAME)."
    )


def _is_graph(entry: WeightsEntry) -> bool:
    return [Path(name).suffix for name in entry.package.files] == [".onnx"]
