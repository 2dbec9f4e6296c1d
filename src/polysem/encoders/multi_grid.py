from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from polysem.encoders.backbones import Backbone, find_stages
from polysem.encoders.base import Trainable, parameters_from, registry
from polysem.encoders.grid import Grid, grid_tokens
from polysem.encoders.image import ImageEncoder
from polysem.encoders.preprocessing import Channels, Interpolation, Preprocessing, Resize, grid_boxes


@registry.register("grids")
class Grids(ImageEncoder):
    """The last feature maps of several networks, averaged to one grid of cells x cells, their channels side by side.

    Networks that differ see different things. Each sees the picture at its own size (`sizes`, None for what it was
    trained on), made smaller from that of the largest.

    `models`: as in `Grid`. All must take the same kind of pixels (mean, std, interpolation). What is None is read from
    the models' files; `lr_scale`, `pretrained` and `backbone_config` as in `Grid`; `trainable` counts the last stages
    of every network.
    """

    def __init__(
        self,
        models: Annotated[list[str], Field(min_length=1)],
        sizes: list[PositiveInt] | None = None,
        cells: PositiveInt = 3,
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
        wanted = [None] * len(models) if sizes is None else sizes
        stored = [None] * len(models) if backbone_config is None else backbone_config.get("grids", ())
        if len(wanted) != len(models):
            self.reject_knobs(f"sizes={sizes}: give one for each of the models {models}, or leave them out.")
        if len(stored) != len(models):
            self.reject_knobs(
                f"backbone_config holds {len(stored)} networks under 'grids' for {len(models)} models. "
                "Take it from the config of a built encoder."
            )
        grids = [
            Grid(
                model,
                image_size=size,
                resize=resize,
                mean=mean,
                std=std,
                interpolation=interpolation,
                pretrained=pretrained,
                backbone_config=config,
            )
            for model, size, config in zip(models, wanted, stored, strict=True)
        ]
        largest = max((grid.preprocessing for grid in grids), key=lambda seen: seen.size)
        if image_size not in (None, largest.size):
            self.reject_knobs(f"image_size={image_size} is not the largest of the sizes, {largest.size}: leave it out.")
        for model, grid in zip(models, grids, strict=True):
            if replace(grid.preprocessing, size=largest.size) != largest:
                self.reject_knobs(
                    f"the models take different pixels: {model} {_pixels(grid.preprocessing)}, another "
                    f"{_pixels(largest)}. Join models that were trained on the same, or give mean, std and "
                    "interpolation for all."
                )
        backbone = Backbone(
            nn.ModuleList(grid.backbone for grid in grids), {"grids": [grid.backbone_config for grid in grids]}
        )
        super().__init__(backbone, sum(grid.dim for grid in grids), dim, largest, trainable, lr_scale)
        self.sizes, self.side = [grid.image_size for grid in grids], cells
        for place, grid in enumerate(grids):
            self.register_buffer(f"average_{place}", averaging(cells, grid.side), persistent=False)

    def tokens(self, pixels: Tensor) -> Tensor:
        maps = []
        for place, (network, size) in enumerate(zip(self.networks, self.sizes, strict=True)):
            seen = pixels if size == self.image_size else F.interpolate(pixels, (size, size), mode="bilinear")
            maps.append(self.get_buffer(f"average_{place}") @ grid_tokens(network, seen))
        return torch.cat(maps, dim=-1)

    def cells(self) -> Tensor:
        return grid_boxes(self.side, self.side)

    @property
    def networks(self) -> list[nn.Module]:
        return list(self.backbone.children())

    def stages(self) -> list[nn.Module]:
        """The networks' stages side by side, counted from the last: as many as the shallowest has."""
        from_the_last = zip(*(reversed(find_stages(network)) for network in self.networks), strict=False)
        joined: list[nn.Module] = [nn.ModuleList(stages) for stages in from_the_last]
        return joined[::-1]

    def last_stages(self, n: int) -> list[nn.Parameter]:
        return [
            parameter for network in self.networks for parameter in parameters_from(network, find_stages(network)[-n])
        ]

    def resolved_knobs(self) -> dict[str, Any]:
        return {**super().resolved_knobs(), "sizes": self.sizes}


def averaging(cells: int, side: int) -> Tensor:
    """(cells * cells, side * side): the share, by area, that each cell of a side x side map has in each new cell."""
    # In units of 1 / (cells * side), in which the edges of both are whole numbers.
    new, old = torch.arange(cells)[:, None] * side, torch.arange(side)[None] * cells
    shared = (torch.minimum(new + side, old + cells) - torch.maximum(new, old)).clamp(min=0)
    rows = shared / side
    return torch.kron(rows, rows)


def _pixels(seen: Preprocessing) -> str:
    mean, std = ([round(channel, 3) for channel in channels] for channels in (seen.mean, seen.std))
    return f"of mean {mean}, std {std}, {seen.interpolation}"
