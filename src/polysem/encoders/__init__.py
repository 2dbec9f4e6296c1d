"""Encoders: pictures, texts and videos to local features."""

from polysem.encoders.backbones import SourceError
from polysem.encoders.base import Encoder, registry
from polysem.encoders.bigru import BiGRU
from polysem.encoders.detector import Detections, Detector
from polysem.encoders.dual import DualImage, DualText
from polysem.encoders.extraction import caption_keys, extract, extract_texts
from polysem.encoders.grid import Grid, Grids, Patch
from polysem.encoders.image import ImageEncoder, PixelEncoder, VideoFrames
from polysem.encoders.onnx_image import Onnx
from polysem.encoders.preprocessing import Preprocessing
from polysem.encoders.region import Frames, Region
from polysem.encoders.text import TextEncoder, Tokens, Transformer

build = registry.build
check, names, describe = registry.check, registry.names, registry.describe


def encoder_takes(name: str) -> str:
    """What the encoder of this name takes: pixels, tokens or features."""
    return registry.find(name).takes


def encoder_kind(name: str) -> str:
    """What the encoder of this name encodes: image, text or video."""
    return registry.find(name).kind


__all__ = [
    "BiGRU",
    "Detections",
    "Detector",
    "DualImage",
    "DualText",
    "Encoder",
    "Frames",
    "Grid",
    "Grids",
    "ImageEncoder",
    "Onnx",
    "Patch",
    "PixelEncoder",
    "Preprocessing",
    "Region",
    "SourceError",
    "TextEncoder",
    "Tokens",
    "Transformer",
    "VideoFrames",
    "build",
    "caption_keys",
    "check",
    "describe",
    "encoder_kind",
    "encoder_takes",
    "extract",
    "extract_texts",
    "names",
]
