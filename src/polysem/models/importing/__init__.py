"""Released checkpoints as models: read safely, rebuilt from our parts, with embeddings equal to the authors'."""

from __future__ import annotations

from pathlib import Path

from polysem.data.vocabulary import Vocabulary
from polysem.encoders import BiGRU, Encoder, Transformer
from polysem.errors import unknown
from polysem.models.importing import dive, labelwise
from polysem.models.importing.checkpoint import SOURCES, CheckpointError, ImportOptions, ReleasedBy, Variant, read
from polysem.models.importing.vse import plan_vse_2ad, plan_vse_infty
from polysem.models.model import Model

__all__ = ["SOURCES", "CheckpointError", "import_checkpoint"]

_PLANS = {"vse-infty": plan_vse_infty, "vse-2ad": plan_vse_2ad, "dive": dive.plan, "labelwise": labelwise.plan}
VARIANTS = ("paper", "official")


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
    wanted = ImportOptions("official" if variant == "official" else "paper", bert_heads)
    plan = _PLANS[source](checkpoint, wanted)
    model = plan.build(checkpoint.file)
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


def attach(encoder: Encoder, vocabulary: str | Path | Vocabulary | None, tokenizer: str | Path | None) -> None:
    """Give the text encoder what it needs for sentences. Without, it takes token ids."""
    if vocabulary is not None:
        if not isinstance(encoder, BiGRU):
            raise CheckpointError("A vocabulary is for a BiGRU, and this text tower is BERT. Give --tokenizer FOLDER.")
        encoder.vocabulary = _fitting(vocabulary, encoder.vocab_size)
    if tokenizer is not None:
        if not isinstance(encoder, Transformer):
            raise CheckpointError("A tokenizer is for BERT, and this text tower is a BiGRU. Give --vocabulary FILE.")
        encoder.load_preprocessing(Path(tokenizer))


def _fitting(given: str | Path | Vocabulary, rows: int) -> Vocabulary:
    vocabulary = given if isinstance(given, Vocabulary) else _read(Path(given))
    if len(vocabulary.with_mask()) == rows:
        return vocabulary.with_mask()  # the released trainers append <mask> while running
    if len(vocabulary) != rows:
        raise CheckpointError(
            f"The vocabulary has {len(vocabulary)} words, the checkpoint's word embedding {rows} rows. Expected as "
            "many words, or one less, as <mask> is appended: give the vocabulary of the same data set."
        )
    return vocabulary


def _read(path: Path) -> Vocabulary:
    if path.is_file():
        with path.open("rb") as file:
            is_pickle = file.read(1) == b"\x80" or path.suffix in (".pkl", ".pickle")
        if is_pickle:
            raise CheckpointError(
                f"{path} is a pickle: reading it would run its code, so it was not read. Write it as JSON with the "
                'authors\' code: {"word2idx": {word: id}}.'
            )
    return Vocabulary.load(path)
