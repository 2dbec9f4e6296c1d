"""Small models to inspect, with random weights."""

from __future__ import annotations

from typing import Any

import torch

from polysem import encoders, pooling, sets, similarity
from polysem.data import Vocabulary
from polysem.encoders import Encoder
from polysem.models import Model, Tower
from support import shaken

DIM, WIDTH = 12, 10
WORDS = ("red", "blue", "small", "dog", "cat", "tree", "car", "boat")
SMALL = {"heads": 2, "head_dim": 6, "ff_mult": 2, "iterations": 3}
SETS: dict[str, dict[str, Any]] = {
    "slots": {"name": "slots", **SMALL},
    "slots-alone": {"name": "slots", "add_global": False, **SMALL},
    "transformer": {"name": "transformer", **SMALL},
    "pie_net": {"name": "pie_net"},
    "pie_net-one": {"name": "pie_net", "k": 1, "hidden": 1},
    "attention_pooling": {"name": "attention_pooling", "hidden": 14, "attention": 6},
    "competing": {"name": "competing_readings", "k": 3, "hidden": 6},
    "competing-one": {"name": "competing_readings", "k": 1, "hidden": 6},
    "competing-mlp": {"name": "competing_readings", "k": 3, "hidden": 6, "head": "mlp"},
    "classes": {"name": "classes", "layers": 1, "heads": 2, "ff": 10},
    **{
        f"single-{name}": {"name": "single", "pooling": name}
        for name in (
            "gpo",
            "adpool",
            "softpool",
            "max",
            "mean",
            "fspool",
            "lip",
            "adapool",
            "seq2seq",
            "gcn",
            "selfattention",
        )
    },
    "single-kmax": {"name": "single", "pooling": "kmax", "knobs": {"k": 2}},
}


def make_predictor(setting: str, width: int) -> sets.SetPredictor:
    knobs = SETS[setting]
    widths = {"dim": width} if knobs["name"] == "single" else {"dim": width, "input_dim": width}
    return sets.build(**widths, **knobs)


def make_text_tower(setting: str = "single-mean") -> Tower:
    encoder = encoders.build("bigru", vocab_size=20, dim=DIM, word_dim=6)
    encoder.vocabulary = Vocabulary(["<pad>", "<start>", "<end>", "<unk>", *WORDS])
    return Tower(encoder, make_predictor(setting, DIM), pool=pooling.build("mean", dim=DIM))


def make_model(
    image: str = "slots", text: str = "slots", similarity_name: str = "smooth_chamfer", encoder: Encoder | None = None
) -> Model:
    """A model of precomputed regions (or of what `encoder` takes) and BiGRU texts."""
    torch.manual_seed(0)
    encoder = encoder or encoders.build("region", input_dim=WIDTH, dim=DIM, form="linear")
    first = Tower(encoder, make_predictor(image, encoder.dim), pool=pooling.build("mean", dim=encoder.dim))
    model = Model(DIM, first, make_text_tower(text), similarity.build(similarity_name))
    shaken(model.image.sets)
    shaken(model.text)
    return model.eval()


def make_regions(count: int = 7, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))


CAPTION_FILE = "a red dog\na blue cat\n\na small tree by the boat\n"
