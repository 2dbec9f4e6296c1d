"""Encoder of images by the regions that an object detector finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from polysem.encoders import backbones
from polysem.encoders.base import Trainable, registry
from polysem.encoders.image import ImageEncoder
from polysem.encoders.preprocessing import Channels, Interpolation, Resize, read_preprocessing, side_of
from polysem.errors import ConfigError, InputError
from polysem.features import LocalFeatures
from polysem.masked_ops import is_tracing

OWL = ("owlvit", "owlv2")


@dataclass(frozen=True, eq=False)
class Detections:
    """The regions found in a batch of pictures, the surest first.

    features: (B, n, dim). boxes: (B, n, 4), [x0, y0, x1, y1] in 0..1 of the pixels. scores: (B, n), in 0..1.
    """

    features: LocalFeatures
    boxes: Tensor
    scores: Tensor


@registry.register("detector")
class Detector(ImageEncoder):
    """The regions an object detector is surest of, as bottom-up attention gives 36: DETR, RT-DETR, D-FINE, OWL-ViT.

    A region's feature is the decoder's query embedding (OWL-ViT: the patch embedding its boxes are read from). `detect`
    gives boxes and scores too. A score is the highest class probability; OWL-ViT has classes only for given words, so
    there it is OWLv2's objectness, or the part of the logit that depends on the picture alone.

    `model` is the folder of a Hugging Face model or a name on the hub; of DETR take the branch without timm:
    facebook/detr-resnet-50@no_timm. The other knobs are those of `grid`.
    """

    tiles_image = False

    def __init__(
        self,
        model: str,
        regions: PositiveInt = 36,
        dim: PositiveInt | None = None,
        image_size: PositiveInt | None = None,
        resize: Resize = "stretch",
        mean: Channels | None = None,
        std: Channels | None = None,
        interpolation: Interpolation | None = None,
        trainable: Trainable = "none",
        lr_scale: float = 1.0,
        pretrained: bool = True,
        backbone_config: dict[str, Any] | None = None,
    ) -> None:
        backbone = backbones.load(model, pretrained, backbone_config, _choose, keep_labels=True)
        config = backbone.config
        family = config["model_type"]
        if family in OWL:
            # Only pictures are read here.
            inner: Any = getattr(backbone.module, family)
            inner.text_model = nn.Identity()
        seen = read_preprocessing(backbone.folder, config, image_size, resize, mean, std, interpolation)
        width = config["vision_config"]["hidden_size"] if family in OWL else config["d_model"]
        super().__init__(backbone, width, dim, seen, trainable, lr_scale)
        self.family, self.regions = family, regions
        self.interpolates = family in OWL and seen.size != side_of(config)
        patch = config["vision_config"]["patch_size"] if family in OWL else 0
        available = (seen.size // patch) ** 2 if patch else config["num_queries"]
        if regions > available:
            self.reject_knobs(f"regions={regions}, but this model finds at most {available}.")

    @property
    def tokens_per_item(self) -> int:
        return self.regions

    def stages(self) -> list[nn.Module]:
        """The decoder's layers; OWL-ViT's own."""
        model: Any = self.backbone
        return super().stages() if self.family in OWL else list(model.model.decoder.layers)

    def detect(self, pixels: Tensor) -> Detections:
        """The `regions` surest regions of each picture with their boxes and scores."""
        self.check(pixels)
        tokens, boxes, scores = self._predict(pixels)
        scores, order = scores.sort(dim=1, descending=True, stable=True)
        order = order[:, : self.regions, None]
        features = self.local(tokens.gather(1, order.expand(-1, -1, tokens.shape[2])))
        centre, size = boxes.gather(1, order.expand(-1, -1, 4)).split(2, dim=-1)
        corners = torch.cat([centre - size / 2, centre + size / 2], dim=-1).clamp(0.0, 1.0)
        return Detections(features, corners, scores[:, : self.regions])

    def forward(self, pixels: Tensor) -> LocalFeatures:
        if not is_tracing():
            return self.detect(pixels).features
        # ONNX has no stable sort; of equals topk too takes the first.
        tokens, _, scores = self._predict(pixels)
        order = scores.topk(self.regions, dim=1).indices[..., None]
        return self.local(tokens.gather(1, order.expand(-1, -1, tokens.shape[2])))

    def tokens(self, pixels: Tensor) -> Tensor:
        """The embedding of every query, found or not, in the model's own order."""
        return self._predict(pixels)[0]

    def cells(self) -> Tensor:
        raise InputError("A detector's regions lie elsewhere in each picture: take encoder.detect(pixels).boxes.")

    def _predict(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query embeddings, boxes (centre, size), scores."""
        model: Any = self.backbone
        if self.family not in OWL:
            found = model(pixels)
            # DETR's last class is "nothing"; its descendants have none.
            probability = found.logits.softmax(-1)[..., :-1] if self.family == "detr" else found.logits.sigmoid()
            return found.last_hidden_state, found.pred_boxes, probability.max(-1).values
        grid, _ = model.image_embedder(pixels, interpolate_pos_encoding=self.interpolates)
        patches = grid.flatten(1, 2)
        boxes = model.box_predictor(patches, grid, self.interpolates)
        if self.family == "owlv2":
            return patches, boxes, model.objectness_predictor(patches).sigmoid()
        head = model.class_head
        alone = head.logit_shift(patches) * (head.elu(head.logit_scale(patches)) + 1)
        return patches, boxes, alone.squeeze(-1).sigmoid()


def _choose(config: Any) -> tuple[Any, Any]:
    name, task = config.model_type, "ZERO_SHOT_OBJECT" if config.model_type in OWL else "OBJECT"
    mapping = getattr(backbones.transformers(), f"MODEL_FOR_{task}_DETECTION_MAPPING")
    if type(config) not in mapping or not (name in OWL or hasattr(config, "num_queries")):
        raise ConfigError(f"detector cannot read a {name!r} model. Give DETR, RT-DETR, D-FINE, OWL-ViT or OWLv2.")
    if getattr(getattr(config, "backbone_config", None), "model_type", None) == "timm_backbone":
        raise ConfigError(
            f"This {name!r} model needs timm. Take a copy without, as facebook/detr-resnet-50@no_timm is."
        )
    return mapping[type(config)], config
