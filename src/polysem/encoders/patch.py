from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor

from polysem.encoders import backbones, hf_preprocessing
from polysem.encoders.base import Trainable, registry
from polysem.encoders.image import ImageEncoder
from polysem.encoders.preprocessing import Channels, Interpolation, Resize, grid_boxes
from polysem.errors import ConfigError


@registry.register("patch")
class Patch(ImageEncoder):
    """A vision transformer's last hidden states, each patch a token: ViT, CLIP, SigLIP, DINOv2, DINOv3.

    `model` is the folder of a Hugging Face model or a name on the hub; of a CLIP or SigLIP pair the vision half is
    taken. `cls` keeps the class token, where there is one, before the patches: its place is the whole picture. Register
    tokens are dropped. `dim` adds a linear projection. Another `image_size` than the trained interpolates positions.

    What is None is read from the model's files. A built encoder's config holds it all, and `backbone_config` too, so
    that it can be rebuilt without those files; `pretrained=False` takes no weights.
    """

    def __init__(
        self,
        model: str,
        dim: PositiveInt | None = None,
        cls: bool = True,
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
        backbone = backbones.load(model, pretrained, backbone_config, _choose)
        config = backbone.config
        seen = hf_preprocessing.preprocessing(backbone.folder, config, image_size, resize, mean, std, interpolation)
        super().__init__(backbone, config["hidden_size"], dim, seen, trainable, lr_scale)
        if seen.size % config["patch_size"]:
            self.reject_knobs(f"image_size={seen.size} is no multiple of the patch size {config['patch_size']}.")
        self.side = seen.size // config["patch_size"]
        self.registers = int(config.get("num_register_tokens") or 0)
        self.keep_cls = cls
        # DINOv3 and some others take any size as they are, and know no such argument.
        knows = "interpolate_pos_encoding" in inspect.signature(self.backbone.forward).parameters
        other_size = seen.size != hf_preprocessing.side_of(config)
        self.arguments: Mapping[str, bool] = {"interpolate_pos_encoding": True} if knows and other_size else {}

    @property
    def has_cls(self) -> bool:
        """Whether the class token is among this encoder's tokens."""
        return self.keep_cls and not self.backbone_config["model_type"].startswith("siglip")

    def tokens(self, pixels: Tensor) -> Tensor:
        states: Tensor = self.backbone(pixels, **self.arguments).last_hidden_state
        patches = states[:, -(self.side**2) :]
        return torch.cat([states[:, :1], patches], dim=1) if self.has_cls else patches

    def cells(self) -> Tensor:
        whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
        patches = grid_boxes(self.side, self.side)
        return torch.cat([whole, patches]) if self.has_cls else patches


def _choose(config: Any) -> tuple[Any, Any]:
    config = getattr(config, "vision_config", None) or config
    mapping = backbones.transformers().MODEL_MAPPING
    sized = isinstance(getattr(config, "patch_size", None), int) and hasattr(config, "hidden_size")
    if type(config) not in mapping or not sized or hf_preprocessing.side_of(config.to_dict()) is None:
        raise ConfigError(
            f"The patch encoder cannot read a {config.model_type!r} model. "
            "Give a vision transformer: ViT, CLIP, SigLIP, DINOv2 or DINOv3."
        )
    if hasattr(config, "vision_use_head"):
        config.vision_use_head = False  # SigLIP's pooling head is not ours to use
    return mapping[type(config)], config
