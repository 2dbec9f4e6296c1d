"""A toy encoder and toy pictures; run as a program, it extracts until somebody kills it.

The i-th picture has i in its first pixel, so that the encoder can keep a diary of what it encoded.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from polysem.data import Collection, Item, Media, load_image
from polysem.encoders import Encoder, PixelEncoder, extraction
from polysem.encoders.extraction import extract
from polysem.features import LocalFeatures
from polysem.registry import Registry

registry: Registry[Encoder] = Registry("toy encoder")
SIZES = ((8, 8), (8, 12), (16, 8))


@registry.register("toy")
class Toy(PixelEncoder):
    """One token for each 4 × 4 cell: pictures of several sizes have several numbers of tokens."""

    kind = "image"
    tokens_per_item = 0  # as many as a picture has cells

    def __init__(self, dim: int = 5, seed: int = 0) -> None:
        super().__init__()
        self.dim = dim
        self.convolution = nn.Conv2d(3, dim, 4, stride=4)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in self.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator))
        self.batches: list[tuple[int, ...]] = []
        self.encoded: list[int] = []
        self.hold: int | None = None
        """How many pictures to encode; at the next one it waits until somebody kills it."""
        self.diary: Path | None = None

    def read(self, path: Path, generator: torch.Generator | None = None) -> Tensor:
        return self.preprocess(load_image(path))

    def preprocess(self, image: Image.Image) -> Tensor:
        width, height = image.size
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        return pixels.reshape(height, width, 3).permute(2, 0, 1).float()

    def forward(self, pixels: Tensor) -> LocalFeatures:
        if self.hold is not None and len(self.encoded) >= self.hold:
            threading.Event().wait()
        numbers = [int(number) for number in pixels[:, 0, 0, 0]]
        self.batches.append(tuple(pixels.shape))
        self.encoded += numbers
        if self.diary is not None:
            with self.diary.open("a") as file:
                file.write("".join(f"{number}\n" for number in numbers))
        values = self.convolution(pixels / 255).flatten(2).transpose(1, 2)
        return LocalFeatures(values, torch.ones(values.shape[:2], dtype=torch.bool))


def pictures(folder: Path, count: int) -> Collection:
    """Pictures of three sizes, one after the other; made where they are not there yet."""
    folder.mkdir(exist_ok=True)
    for i in range(count):
        path = folder / f"{i:03d}.png"
        if not path.exists():
            image = Image.effect_noise(SIZES[i % 3], 80).convert("RGB")
            image.putpixel((0, 0), (i, 0, 0))
            image.save(path)
    items = [Item(f"{i:03d}", Media(folder, f"{i:03d}.png"), (f"picture {i}",)) for i in range(count)]
    return Collection("toys", "image", items)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--diary", type=Path)
    parser.add_argument("--hold", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    extraction.COMMIT_SECONDS = -1.0  # after every batch
    encoder = Toy()
    encoder.diary, encoder.hold = arguments.diary, arguments.hold
    collection = pictures(arguments.folder, len(list(arguments.folder.iterdir())))
    sys.stdout.write("begin\n")
    sys.stdout.flush()
    extract(
        collection,
        encoder,
        arguments.out,
        batch_size=2,
        shard_bytes=2000,
        rank=int(os.environ.get("RANK", 0)),
        world_size=int(os.environ.get("WORLD_SIZE", 1)),
    )


if __name__ == "__main__":
    main()
