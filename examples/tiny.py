"""Stand-ins for real data and real weights, so that every example runs in seconds on any machine.

Pictures of coloured shapes with several captions each, and checkpoints with random weights as `save_pretrained()` lays
them out. What is measured on them says nothing about anything.
"""

from __future__ import annotations

import csv
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import polysem

COLOURS = ("red", "green", "blue", "yellow", "purple", "orange")
SHAPES = ("circle", "square", "triangle")
PLACES = ("left", "middle", "right")
CAPTIONS = (
    "a {colour} {shape} on the {place}",
    "there is a {colour} {shape} {place}",
    "{place} one {shape} is {colour}",
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (*SPECIAL, *COLOURS, *SHAPES, *PLACES, "a", "there", "is", "the", "one", "on")
LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def pictures(folder: Path) -> Path:
    """54 pictures and captions.csv: image, caption, split; three captions for each picture, one in a row."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, (colour, shape, place) in enumerate(product(COLOURS, SHAPES, PLACES)):
        image = Image.new("RGB", (48, 48), "white")
        left = 2 + 10 * PLACES.index(place)
        box = (left, 12, left + 24, 36)
        pencil = ImageDraw.Draw(image)
        if shape == "triangle":
            pencil.polygon([(box[0], box[3]), (box[2], box[3]), ((box[0] + box[2]) // 2, box[1])], fill=colour)
        else:
            (pencil.ellipse if shape == "circle" else pencil.rectangle)(box, fill=colour)
        name = f"{colour}-{shape}-{place}.png"
        image.save(folder / name)
        split = ("train", "train", "val", "test")[number % 4]
        rows += [(name, caption.format(colour=colour, shape=shape, place=place), split) for caption in CAPTIONS]
    with (folder / "captions.csv").open("w", encoding="utf-8", newline="") as table:
        csv.writer(table).writerows([("image", "caption", "split"), *rows])
    return folder


def resnet(folder: Path) -> str:
    """A convolutional network with random weights."""
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    return _saved(transformers.ResNetModel(config), folder)


def clip(folder: Path, family: str = "clip") -> str:
    """CLIP or SigLIP with random weights, both towers in one checkpoint as on the hub."""
    vision: Any = {**LAYERS, "image_size": 32, "patch_size": 8}
    text: Any = {
        **LAYERS,
        "vocab_size": len(WORDS),
        "bos_token_id": 2,
        "eos_token_id": 3,
        "max_position_embeddings": 40,
    }
    if family == "siglip":
        return _saved(
            transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=vision)), folder
        )
    return _saved(transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision)), folder)


def bert(folder: Path) -> str:
    """A text encoder with random weights, and a tokenizer that knows the words of the captions."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    return _saved(transformers.BertModel(transformers.BertConfig(vocab_size=len(WORDS), **LAYERS)), folder)


def settings(folder: Path) -> list[str]:
    """What makes one of the small recipes train on the pictures in a few seconds."""
    return [
        f"image.encoder.model={resnet(folder / 'resnet')}",
        "image.encoder.image_size=32",
        f"text.encoder.model={bert(folder / 'bert')}",
        "dim=32",
        "training.epochs=4",
        "training.batch=9",
    ]


def model(folder: Path) -> polysem.Model:
    """An untrained model of sets of two vectors over the stand-ins, as `polysem.load` would give it."""
    torch.manual_seed(0)
    sets = {"name": "slots", "k": 2, "heads": 2, "head_dim": 8, "ff_mult": 2, "iterations": 2}
    image = {"name": "grid", "model": resnet(folder / "resnet"), "dim": 32, "image_size": 32}
    text = {"name": "transformer", "model": bert(folder / "bert"), "dim": 32}
    return polysem.models.build(
        32,
        {"encoder": image, "pool": {"name": "gpo"}, "sets": sets},
        {"encoder": text, "pool": {"name": "mean"}, "sets": sets},
        {"name": "smooth_chamfer"},
    ).eval()


def _saved(network: Any, folder: Path) -> str:
    transformers.utils.logging.disable_progress_bar()
    network.save_pretrained(folder)
    return str(folder)
