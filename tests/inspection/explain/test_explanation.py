"""Every token belongs to one word, and the weight of a word is the sum of its tokens' weights."""

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from encoders import tiny_models
from inspection.small_models import make_text_tower
from polysem import PolysemError, encoders
from polysem.inspection.explain.explanation import align_words, sum_over_words


def test_words_of_a_vocabulary_say_which_are_unknown():
    found = align_words(make_text_tower().encoder, "A red unicorn")
    assert [word.text for word in found] == ["<start>", "a", "red", "unicorn", "<end>"]
    assert [word.special for word in found] == [True, False, False, False, True]
    assert [word.known for word in found] == [True, False, True, False, True]
    assert [word.tokens for word in found] == [(0,), (1,), (2,), (3,), (4,)]


@pytest.fixture
def pieces(tmp_path):
    """A text encoder that cuts words into pieces."""
    tiny_models.save("bert", tmp_path)
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "##house", "##s", "red"]
    cutting = Tokenizer(models.WordPiece({word: i for i, word in enumerate(known)}, unk_token="[UNK]"))
    cutting.normalizer = normalizers.Lowercase()
    cutting.pre_tokenizer = pre_tokenizers.Whitespace()
    cutting.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=cutting, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(tmp_path)
    return encoders.build("transformer", model=str(tmp_path))


def test_pieces_of_a_word_are_put_together(pieces):
    found = align_words(pieces, "A Doghouses xyz")
    assert [word.text for word in found] == ["[CLS]", "A", "Doghouses", "xyz", "[SEP]"]
    assert [word.tokens for word in found] == [(0,), (1,), (2, 3, 4), (5,), (6,)]
    assert [word.known for word in found] == [True, True, True, False, True]
    weights = torch.tensor([[0.1, 0.1, 0.2, 0.1, 0.1, 0.3, 0.1]])
    torch.testing.assert_close(sum_over_words(weights, found), torch.tensor([[0.1, 0.1, 0.4, 0.3, 0.1]]))


def test_mistakes(pieces):
    with pytest.raises(PolysemError, match="empty"):
        align_words(pieces, "  ")
    with pytest.raises(PolysemError, match="does not read texts"):
        align_words(encoders.build("region", input_dim=4, dim=2), "a dog")
