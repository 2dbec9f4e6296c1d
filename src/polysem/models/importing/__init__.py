"""Released checkpoints as models: read safely, rebuilt from our parts, with embeddings equal to the authors'."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from polysem.data.vocabulary import Vocabulary
from polysem.encoders import BiGRU, Transformer
from polysem.encoders.dual import explain_family, find_dual_encoder
from polysem.errors import unknown
from polysem.models.dual import load_dual_encoder
from polysem.models.folder import locate_model
from polysem.models.importing.checkpoint import SOURCES, ImportedCheckpointError, ReleasedBy, Variant, read
from polysem.models.importing.plans import plan_dive, plan_labelwise, plan_vse_2ad, plan_vse_infty
from polysem.models.model import Model

__all__ = ["SOURCES", "ImportedCheckpointError", "import_checkpoint"]

_PLANS = {"vse-infty": plan_vse_infty, "vse-2ad": plan_vse_2ad, "dive": plan_dive, "labelwise": plan_labelwise}
VARIANTS = ("paper", "official")
TRANSFORMERS = "transformers"


def import_checkpoint(
    path: str | Path,
    source: ReleasedBy | str,
    vocabulary: str | Path | Vocabulary | None = None,
    *,
    variant: Variant | str = "paper",
    tokenizer: str | Path | None = None,
    bert_heads: int | None = None,
) -> Model:
    """The model in a checkpoint that the authors of `source` released: vse-infty, vse-2ad, dive or labelwise.

    Or, with the source "transformers", in a Hugging Face dual encoder: CLIP, SigLIP and their relatives, by folder or
    name on the hub. It needs none of the options below.

    Nothing of the file is executed: it is read as tensors and plain values, or refused.

    vocabulary: the JSON that a BiGRU was trained with, so that the model takes sentences; else it takes word ids.
    tokenizer: a folder with BERT's tokenizer, for the same.
    variant: "paper" leaves padding out, so that an embedding is a function of its item alone; it equals the released
    code on unpadded batches. "official" lets padding in where the released code does, and equals it on any batch.
    bert_heads: attention heads of a BERT whose width is not a multiple of 64; the file does not tell.

    The label-wise model takes each region's features followed by the five numbers of its box, (regions, dim + 5).
    """
    if variant not in VARIANTS:
        raise unknown("variant", variant, VARIANTS)
    if source not in (*SOURCES, TRANSFORMERS):
        raise unknown("origin of a checkpoint", source, (*SOURCES, TRANSFORMERS))
    if source == TRANSFORMERS:
        if vocabulary is not None or tokenizer is not None or bert_heads is not None or variant != "paper":
            raise ImportedCheckpointError(
                f"{path}: a Hugging Face model brings its own tokenizer and settings. Leave out --vocabulary, "
                "--tokenizer, --variant and --bert-heads."
            )
        return _import_dual_encoder(str(path))
    checkpoint = read(Path(path), source, cast(Variant, variant), bert_heads)
    plan = _PLANS[source](checkpoint)
    model = plan.build(checkpoint.file)
    encoder = model.text.encoder
    if not isinstance(encoder, Transformer) and (bert_heads is not None or tokenizer is not None):
        raise ImportedCheckpointError(
            f"{checkpoint.file}: this text tower is a BiGRU. Leave out --bert-heads and --tokenizer; give --vocabulary."
        )
    if isinstance(encoder, Transformer) and tokenizer is not None:
        encoder.load_preprocessing(Path(tokenizer))
    if vocabulary is not None:
        if not isinstance(encoder, BiGRU):
            raise ImportedCheckpointError(
                f"{checkpoint.file}: this text tower is BERT. Give --tokenizer, no --vocabulary."
            )
        encoder.vocabulary = _read_vocabulary(vocabulary, encoder.vocab_size)
    recorded = dict(checkpoint.recorded)
    model.provenance = {
        "imported": {
            "from": source,
            "file": checkpoint.file,
            "variant": variant,
            "data": str(checkpoint.options.get("data_name", "")),
            "epoch": recorded.pop("epoch", None),
            "recorded": recorded,
            "dropped": [f"image: {what}" for what in plan.image.dropped]
            + [f"text: {what}" for what in plan.text.dropped],
        }
    }
    return model


def _import_dual_encoder(name: str) -> Model:
    """A Hugging Face dual encoder as a model that saves all it needs: weights, tokenizer, how pictures are prepared."""
    folder = locate_model(name)
    if find_dual_encoder(folder) is None:
        raise ImportedCheckpointError(
            f"{name} is not a dual encoder of transformers: {explain_family(folder)} Give a folder of CLIP, SigLIP or "
            "a relative, as save_pretrained() writes it, or its name on the hub."
        )
    model = load_dual_encoder(name)
    family = model.image.encoder.config["backbone_config"]["model_type"]
    shown = Path(name).name if Path(name).expanduser().is_dir() else name
    known = {"from": TRANSFORMERS, "file": shown, "family": family, "data": "", "epoch": None}
    model.provenance |= {"imported": {**known, "recorded": {}, "dropped": []}}
    return model


def _read_vocabulary(given: str | Path | Vocabulary, rows: int) -> Vocabulary:
    """A vocabulary for a word embedding of so many rows."""
    if not isinstance(given, Vocabulary):
        path = Path(given)
        if path.is_file() and (path.suffix in (".pkl", ".pickle") or path.read_bytes()[:1] == b"\x80"):
            raise ImportedCheckpointError(
                f"{path} is a pickle: reading it would run its code, so it was not read. Write it as JSON with the "
                'authors\' code: {"word2idx": {word: id}}.'
            )
    vocabulary = given if isinstance(given, Vocabulary) else Vocabulary.load(path)
    if len(vocabulary.with_mask()) == rows:
        return vocabulary.with_mask()  # the released trainers append <mask> while running
    if len(vocabulary) != rows:
        raise ImportedCheckpointError(
            f"The vocabulary has {len(vocabulary)} words, the checkpoint's word embedding {rows} rows. Expected as "
            "many words, or one less, as <mask> is appended: give the vocabulary of the same data set."
        )
    return vocabulary
