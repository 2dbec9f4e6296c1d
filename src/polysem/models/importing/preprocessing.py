"""What turns sentences into ids, and is not in a checkpoint: a vocabulary for a BiGRU, a tokenizer for BERT."""

from __future__ import annotations

from pathlib import Path

from polysem.data.vocabulary import Vocabulary
from polysem.encoders import BiGRU, Encoder, Transformer
from polysem.models.importing.tensors import CheckpointError


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
