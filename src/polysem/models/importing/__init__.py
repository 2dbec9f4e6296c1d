"""Released checkpoints as models: read safely, rebuilt from our parts, with embeddings equal to the authors'."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from polysem.encoders import Transformer
from polysem.errors import unknown
from polysem.models.importing import dive, labelwise, vse_2ad, vse_infty
from polysem.models.importing.plan import Variant, Wanted
from polysem.models.importing.preprocessing import attach
from polysem.models.importing.reading import SOURCES, Source, read
from polysem.models.importing.tensors import CheckpointError
from polysem.models.model import Model

if TYPE_CHECKING:
    from polysem.data.vocabulary import Vocabulary

__all__ = ["SOURCES", "CheckpointError", "import_checkpoint"]

_PLANS = {"vse-infty": vse_infty.plan, "vse-2ad": vse_2ad.plan, "dive": dive.plan, "labelwise": labelwise.plan}
VARIANTS = ("paper", "official")


def import_checkpoint(
    path: str | Path,
    source: Source | str,
    vocabulary: str | Path | Vocabulary | None = None,
    *,
    variant: Variant | str = "paper",
    tokenizer: str | Path | None = None,
    bert_heads: int | None = None,
) -> Model:
    """The model in a checkpoint that the authors of `source` released: vse-infty, vse-2ad, dive or labelwise.

    Nothing of the file is executed: it is read as tensors and plain values, or refused.

    vocabulary: the JSON that a BiGRU was trained with, so that the model takes sentences; else it takes word ids.
    tokenizer: a folder with BERT's tokenizer, for the same.
    variant: "paper" leaves padding out, so that an embedding is a function of its item alone; it equals the released
    code on unpadded batches. "official" lets padding in where the released code does, and equals it on any batch.
    bert_heads: attention heads of a BERT whose width is no multiple of 64; the file does not tell.

    The label-wise model takes each region's features followed by the five numbers of its box, (regions, dim + 5).
    """
    if variant not in VARIANTS:
        raise unknown("variant", variant, VARIANTS)
    checkpoint = read(Path(path), source)
    wanted = Wanted("official" if variant == "official" else "paper", bert_heads)
    plan = _PLANS[source](checkpoint, wanted)
    model = plan.carry_out(checkpoint.file)
    if bert_heads is not None and not isinstance(model.text.encoder, Transformer):
        raise CheckpointError(f"{checkpoint.file}: its text tower is a BiGRU, without heads. Leave out --bert-heads.")
    attach(model.text.encoder, vocabulary, tokenizer)
    recorded = dict(checkpoint.recorded)
    model.provenance = {
        "imported": {
            "from": source,
            "file": checkpoint.file,
            "variant": variant,
            "data": str(checkpoint.options.get("data_name", "")),
            "epoch": recorded.pop("epoch", None),
            "recorded": recorded,
            "dropped": plan.dropped,
        }
    }
    return model
