"""The two halves of a pretrained image-text dual encoder: CLIP, SigLIP, ALIGN, Chinese-CLIP, AltCLIP, MetaCLIP, …

Each half gives its tokens as local features and the pair's own embedding as the global feature: the set predictor
`global_feature` makes it the dual encoder that it is, any other starts from it. What counts is each family's own:
its image processor, its padding, its pooling and projection are those of transformers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from polysem.encoders import backbones
from polysem.encoders.backbones import Backbone, SourceError
from polysem.encoders.base import Trainable, registry
from polysem.encoders.image import ImageEncoder
from polysem.encoders.preprocessing import Preprocessing, grid_boxes, to_rgb
from polysem.encoders.text import TextEncoder, Tokens, Transformer
from polysem.errors import ConfigError, InputError, kind
from polysem.features import LocalFeatures
from polysem.masked_ops import is_tracing

_IMAGE, _TEXT = ("vision_model", "visual_projection"), ("text_model", "text_projection")
_SHARED = ("logit_scale", "logit_bias", "temperature")


def is_dual_encoder(folder: Path) -> bool:
    """Whether a folder holds a Hugging Face model that embeds images and texts into one space."""
    return _dual_class(_read_family(folder)) is not None


def find_dual_encoder(folder: Path) -> Path | None:
    """The folder of the Hugging Face dual encoder in a folder: itself, or within one of sentence-transformers' CLIP."""
    if is_dual_encoder(folder):
        return folder
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        inner = [folder / str(module["path"]) for module in modules]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return next((path for path in inner if path != folder and is_dual_encoder(path)), None)


def _read_family(folder: Path) -> Any:
    """The model_type that a folder's config.json names; None where there is none."""
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):
        return None


def explain_family(folder: Path) -> str:
    """Why the model in a folder is no dual encoder, in a sentence."""
    family = _read_family(folder)
    if family is None:
        return f"{folder} has no config.json that names a model_type."
    if family == "xclip":
        return "X-CLIP changes its text vectors by the video they are compared with, so that no index can hold them."
    return f"A {family!r} model does not embed images and texts into one space."


def _dual_class(family: Any) -> Any:
    """The class of a family whose models have `get_image_features` and `get_text_features`; None for any other."""
    known = backbones.transformers()
    if not isinstance(family, str) or family not in known.CONFIG_MAPPING:
        return None
    cls = known.MODEL_MAPPING.get(known.CONFIG_MAPPING[family], None)
    return cls if hasattr(cls, "get_image_features") and hasattr(cls, "get_text_features") else None


def _choose(config: Any) -> tuple[Any, Any]:
    cls = _dual_class(config.model_type)
    if cls is None:
        raise ConfigError(
            f"A {config.model_type!r} model does not embed images and texts into one space. Give one that does, such "
            "as openai/clip-vit-base-patch32 or google/siglip2-base-patch16-224."
        )
    return cls, config


def load_half(
    model: str, pretrained: bool, stored: Mapping[str, Any] | None, other: tuple[str, ...]
) -> tuple[Backbone, tuple[float, float | None]]:
    """The dual encoder without the modules of its other half, and what makes a cosine its logit: scale and bias."""
    if pretrained or stored is None:
        folder = backbones.locate(model)
        found = find_dual_encoder(folder)
        if found not in (None, folder):  # within the folder of sentence-transformers
            model = str(found)
    backbone = backbones.load(model, pretrained, stored, _choose)
    constants = {name: getattr(backbone.module, name).detach() for name in _SHARED if hasattr(backbone.module, name)}
    for name in (*other, *constants):
        if hasattr(backbone.module, name):
            delattr(backbone.module, name)
    # ALIGN divides by a temperature; the others multiply by the exponential of a learned scale.
    scale = 1 / constants["temperature"] if "temperature" in constants else constants["logit_scale"].exp()
    bias = constants.get("logit_bias")
    return backbone, (float(scale), None if bias is None else float(bias))


@registry.register("dual_image")
class DualImage(ImageEncoder):
    """The image half of a dual encoder: its patches, and the pair's image embedding as the global feature.

    `model` is the folder of a Hugging Face model or a name on the hub. Pictures are prepared by the model's own image
    processor. A built encoder's config holds what it needs to be rebuilt without those files.
    """

    makes_summary = True

    def __init__(
        self,
        model: str,
        trainable: Trainable = "none",
        lr_scale: float = 1.0,
        pretrained: bool = True,
        backbone_config: dict[str, Any] | None = None,
        processor: dict[str, Any] | None = None,
    ) -> None:
        backbone, logit = load_half(model, pretrained, backbone_config, _TEXT)
        processing = _build_processor(backbone, processor)
        seen = _describe(processing)
        self.patch_size = int(processing.patch_size) if is_naflex(backbone.module) else None
        with torch.no_grad():
            states, summary = _image_outputs(backbone.module, torch.zeros(1, 3, seen.size, seen.size))
        super().__init__(backbone, states.shape[-1], None, seen, trainable, lr_scale)
        self.processor, self.summary_dim, self.logit = processing, summary.shape[-1], logit
        self.side = math.isqrt(states.shape[1])  # a class token before the patches is less than one more row
        self.has_cls = states.shape[1] > self.side**2

    def preprocess(self, image: Image.Image) -> Tensor:
        """(3, height, width): the picture as the model's own processor shows it. Of NaFlex in its own proportions."""
        prepared = self.processor(images=to_rgb(image), return_tensors="pt")
        pixels: Tensor = prepared["pixel_values"][0]
        if self.patch_size is None:
            return pixels
        rows, columns = prepared["spatial_shapes"][0].tolist()
        cells = pixels[: rows * columns].view(rows, columns, self.patch_size, self.patch_size, 3)
        return cells.permute(4, 0, 2, 1, 3).reshape(3, rows * self.patch_size, columns * self.patch_size)

    def grid(self, width: int, height: int) -> tuple[int, int] | None:
        if self.patch_size is None:
            return None
        fit = import_module(type(self.processor).__module__).get_image_size_for_max_num_patches
        high, wide = fit(height, width, self.patch_size, int(self.processor.max_num_patches))
        return high // self.patch_size, wide // self.patch_size

    def patch_grid(self, pixels: Tensor) -> tuple[int, int]:
        """(rows, columns) of the patches of prepared pixels (3, H, W)."""
        if self.patch_size is None:
            return self.side, self.side
        return pixels.shape[1] // self.patch_size, pixels.shape[2] // self.patch_size

    def places(self, width: int | None = None, height: int | None = None) -> Tensor:
        cells = self.grid(width or 1, height or width or 1)
        return super().places(width, height) if cells is None else grid_boxes(*cells)

    def check(self, pixels: Tensor) -> None:
        if is_tracing() or self.patch_size is None:
            return super().check(pixels)
        side = self.patch_size
        if not isinstance(pixels, Tensor) or pixels.ndim != 4 or pixels.shape[1] != 3 or not len(pixels):
            fits = False
        else:
            fits = all(size >= side and size % side == 0 for size in pixels.shape[2:])
        if not fits:
            raise InputError(
                f"This encoder takes pixels of shape (items, 3, height, width), both multiples of {side}, got "
                f"{kind(pixels)}. Make them with encoder.preprocess(image); pictures of one shape can be stacked."
            )

    def forward(self, pixels: Tensor) -> LocalFeatures:
        self.check(pixels)
        states, summary = _image_outputs(self.backbone, pixels)
        features = self.local(states)
        return LocalFeatures(features.values, features.mask, summary)

    def tokens(self, pixels: Tensor) -> Tensor:
        return _image_outputs(self.backbone, pixels)[0]

    def cells(self) -> Tensor:
        patches = grid_boxes(self.side, self.side)
        return torch.cat([torch.tensor([[0.0, 0.0, 1.0, 1.0]]), patches]) if self.has_cls else patches

    def resolved_knobs(self) -> Mapping[str, Any]:
        kept = {"pretrained": False, "backbone_config": self.backbone_config}
        return {**kept, "processor": json.loads(self.processor.to_json_string())}


def _image_outputs(module: nn.Module, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """(B, 3, S, S) -> tokens (B, N, width) and the embedding (B, dim), before it is scaled to unit length."""
    given = {"pixel_values": pixels}
    if is_naflex(module):
        given = _cut_patches(pixels, int(module.config.vision_config.patch_size))  # type: ignore[union-attr, arg-type]
    output: Any = module.get_image_features(**given)  # type: ignore[operator]
    states = output.last_hidden_state
    # A convolutional network (ALIGN) has a map of cells.
    return (states.flatten(2).transpose(1, 2) if states.ndim == 4 else states), output.pooler_output


def is_naflex(module: nn.Module) -> bool:
    """Whether it takes pictures in their own proportions, as so many patches: SigLIP 2 NaFlex."""
    return bool(getattr(module.config, "model_type", None) == "siglip2")


def _cut_patches(pixels: Tensor, side: int) -> dict[str, Tensor]:
    """Pictures of one shape as the patches that NaFlex takes, without padding: there is none where all are alike."""
    items, _, height, width = pixels.shape
    rows, columns = height // side, width // side
    patches = pixels.view(items, 3, rows, side, columns, side).permute(0, 2, 4, 3, 5, 1)
    mask = torch.ones(items, rows * columns, dtype=torch.long, device=pixels.device)
    shapes = torch.tensor([[rows, columns]] * items, device=pixels.device)
    values = patches.reshape(items, rows * columns, -1)
    return {"pixel_values": values, "pixel_attention_mask": mask, "spatial_shapes": shapes}


def _build_processor(backbone: Backbone, stored: Mapping[str, Any] | None) -> Any:
    """The image processor of a folder, or from what an encoder has stored."""
    library = backbones.transformers()
    if stored is not None:
        kind, knobs = (
            str(stored["image_processor_type"]),
            {k: v for k, v in stored.items() if k != "image_processor_type"},
        )
        return getattr(library, kind if kind.endswith("Pil") else f"{kind.removesuffix('Fast')}Pil")(**knobs)
    try:
        return library.AutoImageProcessor.from_pretrained(
            backbone.folder, local_files_only=True, trust_remote_code=False, backend="pil"
        )
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{backbone.folder} has no image processor ({str(error).splitlines()[0]}). "
            "Copy preprocessor_config.json (or processor_config.json) of the model there."
        ) from None


def _describe(processor: Any) -> Preprocessing:
    """What part of a picture a processor shows, for boxes on it, and how pixels are normalised, for augmentation."""
    if getattr(processor, "max_num_patches", None):  # NaFlex: a square picture of so many patches
        size = {"height": math.isqrt(processor.max_num_patches) * processor.patch_size}
    else:
        size = dict(processor.size)
    crop = dict(getattr(processor, "crop_size", None) or {})
    cropped = bool(getattr(processor, "do_center_crop", False) and crop)
    side = crop["height"] if cropped else size.get("height") or size["shortest_edge"]
    return Preprocessing(
        size=int(side),
        resize="crop" if cropped or "shortest_edge" in size else "stretch",
        mean=tuple(processor.image_mean),
        std=tuple(processor.image_std),
        interpolation={1: "lanczos", 2: "bilinear", 3: "bicubic"}.get(int(processor.resample), "bicubic"),  # type: ignore[arg-type]
    )


@registry.register("dual_text")
class DualText(Transformer):
    """The text half of a dual encoder: its tokens, and the pair's text embedding as the global feature.

    Texts are tokenized, lower-cased and padded as the family was trained: SigLIP sees every text at its full length
    of 64 tokens, padding included (on the side that its tokenizer says), and in lower case; the others see a text's
    own tokens.
    """

    makes_summary = True

    def __init__(
        self,
        model: str,
        max_length: PositiveInt | None = None,
        trainable: Trainable = "none",
        lr_scale: float = 1.0,
        pretrained: bool = True,
        backbone_config: dict[str, Any] | None = None,
    ) -> None:
        TextEncoder.__init__(self, trainable, lr_scale)
        backbone, _ = load_half(model, pretrained, backbone_config, _IMAGE)
        self.backbone, self.backbone_config, self.projection = backbone.module, backbone.config, None
        whole: Any = backbone.module.config
        text = whole.text_config
        self.dim, self.vocab_size = int(text.hidden_size), int(text.vocab_size)
        self.pad = int(getattr(text, "pad_token_id", 0) or 0)
        self.as_trained = backbone.config["model_type"].startswith("siglip")
        # Positions of the RoBERTa family (AltCLIP) start after the padding id, which costs them two.
        limit = int(text.max_position_embeddings) - 2 * (
            "roberta" in text.model_type or text.model_type == "altclip_text_model"
        )
        self.max_length = limit if self.as_trained else min(max_length or limit, limit)
        self.tokenizer: Any = None
        if backbone.folder is not None:
            self.load_preprocessing(backbone.folder)
        self.set_trainable(trainable)

    def prepare_text(self, text: str) -> str:
        return text.lower() if self.as_trained else text

    @property
    def structural_ids(self) -> frozenset[int]:
        """The ids that stand for no word: start, end, padding. The vector is read at one of them."""
        known = set() if self.tokenizer is None else set(self.tokenizer.all_special_ids)
        return frozenset(known - {getattr(self.tokenizer, "unk_token_id", None)})

    def load_preprocessing(self, folder: Path) -> None:
        super().load_preprocessing(folder)
        if self.tokenizer.pad_token_id is not None:
            self.pad = int(self.tokenizer.pad_token_id)

    @property
    def pads_before(self) -> bool:
        """Whether padding that the model sees stands before the text: the hub's SigLIP 2 has it behind."""
        return self.as_trained and getattr(self.tokenizer, "padding_side", "right") == "left"

    def preprocessing_bytes(self) -> Iterable[bytes]:
        yield from super().preprocessing_bytes()
        if self.pads_before:
            yield b"padding before the text"

    def forward(self, tokens: Tokens) -> LocalFeatures:
        ids, length = self.check_tokens(tokens), tokens.ids.shape[1]
        if self.as_trained:
            ids = F.pad(ids, (0, self.max_length - length), value=self.pad)
        if self.pads_before:  # the text's tokens go to the end, and their states come back
            columns = torch.arange(self.max_length, device=ids.device)
            shift = self.max_length - tokens.lengths[:, None]
            ids = ids.gather(1, (columns - shift) % self.max_length)
        mask = None if self.as_trained else tokens.mask.long()
        output: Any = self.backbone.get_text_features(input_ids=ids, attention_mask=mask)  # type: ignore[operator]
        states = output.last_hidden_state[:, :length]
        if self.pads_before:
            back = ((columns + shift) % self.max_length)[:, :length, None]
            states = output.last_hidden_state.gather(1, back.expand(-1, -1, states.shape[-1]))
        return LocalFeatures(states, tokens.mask, output.pooler_output).zero_padding()
