"""What is wrong with a file is said, nothing of it is run, and nothing is written."""

import argparse
import os
import pickle
import re
import shutil

import numpy as np
import pytest
import torch

import polysem
from polysem import PolysemError
from polysem.data import Vocabulary
from polysem.models import ImportedCheckpointError, import_checkpoint
from support import FIXTURES

pytestmark = pytest.mark.slow

FILES = {
    "vse-infty": FIXTURES / "checkpoint_vse_infty_bigru.pth",
    "vse-2ad": FIXTURES / "checkpoint_vse_2ad_bigru.pth",
    "dive": FIXTURES / "checkpoint_dive_bigru.pth.tar",
    "labelwise": FIXTURES / "checkpoint_labelwise.pth.tar",
}
BERT = FIXTURES / "checkpoint_vse_infty_bert.pth"
every_source = pytest.mark.parametrize("source", FILES)


def content(path):
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, map_location="cpu", weights_only=True)


def changed(tmp_path, source, change):
    held = content(FILES[source])
    change(held)
    torch.save(held, tmp_path / "changed.pth")
    return import_checkpoint(tmp_path / "changed.pth", source)


# ------------------------------------------------------------------------------------------------------- the file


class Harmful:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("legacy", [False, True])
def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path, legacy):
    trace = tmp_path / "trace"
    held = {**content(FILES["vse-2ad"]), "extra": Harmful(f"touch {trace}")}
    torch.save(held, tmp_path / "harmful.pth", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(ImportedCheckpointError, match=r"asks for \w+\.system;.*no code from it was run"):
        import_checkpoint(tmp_path / "harmful.pth", "vse-2ad")
    assert not trace.exists()


def test_a_bare_pickle_is_not_run_either(tmp_path):
    trace = tmp_path / "trace"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / "model.pkl").write_bytes(pickle.dumps(Harmful(f"touch {trace}"), protocol))
        with pytest.raises(ImportedCheckpointError, match="no code from it was run"):
            import_checkpoint(tmp_path / "model.pkl", "vse-2ad")
    assert not trace.exists()


def test_classes_other_than_namespace_and_device_are_named(tmp_path):
    held = content(FILES["vse-2ad"])
    held["args"].device = torch.device("cuda:0")  # as after a run on a GPU
    torch.save(held, tmp_path / "gpu.pth")
    import_checkpoint(tmp_path / "gpu.pth", "vse-2ad")
    torch.save({**held, "rsum": np.float64(1.0)}, tmp_path / "numpy.pth")
    with pytest.raises(ImportedCheckpointError, match=r"asks for numpy\S+scalar; .* argparse\.Namespace alone"):
        import_checkpoint(tmp_path / "numpy.pth", "vse-2ad")


@every_source
@pytest.mark.parametrize("legacy", [False, True])
def test_a_file_cut_short_is_damaged_wherever_it_ends(source, legacy, tmp_path):
    torch.save(content(FILES[source]), tmp_path / "whole.pth", _use_new_zipfile_serialization=not legacy)
    whole = (tmp_path / "whole.pth").read_bytes()
    for end in (1, 2, 10, 100, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.pth").write_bytes(whole[:end])
        with pytest.raises(ImportedCheckpointError, match=r"cut\.pth.*(cannot be read|refused|is not a checkpoint)"):
            import_checkpoint(tmp_path / "cut.pth", source)


def test_what_is_no_checkpoint_is_said(tmp_path):
    with pytest.raises(ImportedCheckpointError, match="no such file"):
        import_checkpoint(tmp_path / "absent.pth", "dive")
    with pytest.raises(ImportedCheckpointError, match="is a folder"):
        import_checkpoint(tmp_path, "dive")
    (tmp_path / "empty.pth").touch()
    with pytest.raises(ImportedCheckpointError, match="is empty"):
        import_checkpoint(tmp_path / "empty.pth", "dive")
    (tmp_path / "text.pth").write_text("<html>404</html>")
    with pytest.raises(ImportedCheckpointError, match="cannot be read as a PyTorch checkpoint"):
        import_checkpoint(tmp_path / "text.pth", "dive")
    for held in ({"weight": torch.zeros(2)}, {"model": {"weight": torch.zeros(2)}}, {"model": []}, [], 3, {}):
        torch.save(held, tmp_path / "other.pth")
        with pytest.raises(ImportedCheckpointError, match="is not a checkpoint of vse-infty"):
            import_checkpoint(tmp_path / "other.pth", "dive")


@every_source
@pytest.mark.parametrize("true", FILES)
def test_a_wrong_origin_is_corrected(source, true):
    if source == true:
        return
    with pytest.raises(ImportedCheckpointError, match=rf"is not of {source}.*looks like {true}.*--from {true}"):
        import_checkpoint(FILES[true], source)


def test_unknown_names_are_listed():
    with pytest.raises(PolysemError, match="Did you mean 'vse-infty'"):
        import_checkpoint(FILES["vse-infty"], "vse-infinity")
    with pytest.raises(PolysemError, match=r"variant 'papers'.*Did you mean 'paper'"):
        import_checkpoint(FILES["dive"], "dive", variant="papers")


# ----------------------------------------------------------------------------------------------------- the tensors

# Tensors that no embedding depends on.
IDLE = ("bns.1.", "fc_MLM", "fc_MOC", "module.fc_predict")


@every_source
def test_every_missing_tensor_is_named(source, tmp_path):
    held = content(FILES[source])
    states = held["model"] if isinstance(held["model"], list) else [held["model"]]
    if source == "dive":  # its tied layers are listed once per iteration, and any one of them is enough
        states[0] = held["model"] = {name: t for name, t in states[0].items() if not re.search(r"layers\.[1-3]", name)}
    seen = 0
    for state in states:
        for name in [name for name in state if not any(part in name for part in IDLE)]:
            kept = state.pop(name)
            torch.save(held, tmp_path / "less.pth")
            with pytest.raises(ImportedCheckpointError, match=r"less\.pth.*(no tensor|found no tensor)"):
                import_checkpoint(tmp_path / "less.pth", source)
            state[name] = kept
            seen += 1
    assert seen > 10


@every_source
def test_a_foreign_or_misshapen_tensor_is_named(source, tmp_path):
    def first(held):
        return held["model"][0] if isinstance(held["model"], list) else held["model"]

    def foreign(held):
        first(held)["img_enc.extra.weight" if source in ("dive", "vse-2ad") else "extra.weight"] = torch.zeros(2)

    with pytest.raises(ImportedCheckpointError, match=r"extra\.weight"):
        changed(tmp_path, source, foreign)

    def misshapen(held):
        name = next(name for name in first(held) if name.endswith("fc.weight"))
        first(held)[name] = first(held)[name][0]

    with pytest.raises(ImportedCheckpointError, match=r"'fc\.weight' has shape \(\d+,\), expected 2 axes"):
        changed(tmp_path, source, misshapen)


def test_sides_of_different_widths_are_named(tmp_path):
    def narrow(held):
        for name in ("fc.weight", "fc.bias"):
            held["model"][0][name] = held["model"][0][name][:8]

    with pytest.raises(ImportedCheckpointError, match="image side has width 8, the text side 16"):
        changed(tmp_path, "vse-infty", narrow)


def test_nan_is_not_imported(tmp_path):
    def diverge(held):
        held["model"]["txt_enc.embed.weight"][3, 3] = float("nan")

    with pytest.raises(ImportedCheckpointError, match=r"'txt_enc\.embed\.weight' holds NaN"):
        changed(tmp_path, "vse-2ad", diverge)


@pytest.mark.parametrize(
    ("source", "name"),
    [("vse-infty", "backbone.top.0.weight"), ("vse-2ad", "img_enc.vit.x"), ("dive", "img_enc.cnn.conv1.weight")],
)
def test_models_with_an_image_network_are_refused(source, name, tmp_path):
    def grid(held):
        state = held["model"][0] if isinstance(held["model"], list) else held["model"]
        state[name] = torch.zeros(1)

    with pytest.raises(
        ImportedCheckpointError, match=r"reads pictures with a network of its own.*region features can be"
    ):
        changed(tmp_path, source, grid)


@pytest.mark.parametrize(
    ("source", "option", "value"),
    [
        ("vse-infty", "no_imgnorm", True),
        ("vse-2ad", "no_txtnorm", True),
        ("dive", "arch", "pvse"),
        ("dive", "spm_activation", "geglu"),
        ("dive", "denominator", 1.0),
        ("dive", "spm_txt_pos_enc_type", "learned"),
        ("dive", "eval_similarity", "mp"),
    ],
)
def test_options_that_make_another_model_are_refused(source, option, value, tmp_path):
    def set_option(held):
        setattr(held.get("opt", held.get("args")), option, value)

    with pytest.raises(ImportedCheckpointError, match=rf"trained with {option}={value!r}.*can be imported"):
        changed(tmp_path, source, set_option)


def test_options_that_tensors_do_not_show_must_be_there(tmp_path):
    with pytest.raises(ImportedCheckpointError, match=r"does not say with which img_res_pool.*'args'"):
        changed(tmp_path, "dive", lambda held: held.pop("args"))


def test_options_out_of_range_are_named(tmp_path):
    with pytest.raises(ImportedCheckpointError, match=r"cannot be built.*iterations.*given: 0"):
        changed(tmp_path, "dive", lambda held: setattr(held["args"], "spm_depth", 0))


# ----------------------------------------------------------------------------------------- vocabulary and tokenizer


def vocabulary(size):
    return Vocabulary(["<pad>", "<start>", "<end>", "<unk>", "a", "dog", *(f"word{i}" for i in range(size - 6))])


def test_a_vocabulary_lets_a_model_take_sentences(tmp_path):
    vocabulary(39).save(tmp_path / "vocab.json")  # 40 rows: <mask> is appended, as by the trainers
    model = import_checkpoint(FILES["vse-2ad"], "vse-2ad", tmp_path / "vocab.json")
    assert model.text.encoder.vocabulary.mask_id == 39
    model.save(tmp_path / "model")
    loaded = polysem.load(tmp_path / "model")
    assert torch.equal(loaded.encode_texts(["a dog", "a unicorn"]), loaded.encode_texts([[1, 4, 5, 2], [1, 4, 3, 2]]))
    full = import_checkpoint(FILES["vse-2ad"], "vse-2ad", vocabulary(40))
    assert full.text.encoder.vocabulary.mask_id is None


def test_without_one_it_takes_ids_alone():
    model = import_checkpoint(FILES["vse-2ad"], "vse-2ad")
    assert model.encode_texts([[1, 4, 5, 2]]).shape == (1, 1, 16)
    with pytest.raises(PolysemError, match="no vocabulary"):
        model.encode_texts(["a dog"])


@pytest.mark.parametrize("size", [38, 41])
def test_a_vocabulary_of_another_size_is_refused(size):
    with pytest.raises(ImportedCheckpointError, match=rf"has {size} words, the checkpoint's word embedding 40 rows"):
        import_checkpoint(FILES["vse-infty"], "vse-infty", vocabulary(size))


def test_a_pickled_vocabulary_is_not_opened(tmp_path):
    for name, protocol in (("vocab.json", 4), ("vocab.pkl", 0)):
        (tmp_path / name).write_bytes(pickle.dumps(Harmful(f"touch {tmp_path / 'trace'}"), protocol))
        with pytest.raises(ImportedCheckpointError, match=r"is a pickle.*not read"):
            import_checkpoint(FILES["dive"], "dive", tmp_path / name)
    assert not (tmp_path / "trace").exists()


def test_a_missing_or_foreign_vocabulary_is_said(tmp_path):
    with pytest.raises(PolysemError, match="no such file"):
        import_checkpoint(FILES["dive"], "dive", tmp_path / "absent.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(PolysemError, match="not a vocabulary"):
        import_checkpoint(FILES["dive"], "dive", tmp_path / "list.json")


def test_what_does_not_belong_to_the_text_tower_is_refused(tmp_path):
    with pytest.raises(ImportedCheckpointError, match="this text tower is BERT"):
        import_checkpoint(BERT, "vse-infty", vocabulary(48), bert_heads=2)
    with pytest.raises(ImportedCheckpointError, match="this text tower is a BiGRU"):
        import_checkpoint(FILES["vse-infty"], "vse-infty", tokenizer=tmp_path)


def test_a_tokenizer_lets_bert_take_sentences(tmp_path):
    import transformers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    folder = tmp_path / "tokenizer"
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(folder)
    import_checkpoint(BERT, "vse-infty", tokenizer=folder, bert_heads=2).save(tmp_path / "model")
    shutil.rmtree(folder)
    model = polysem.load(tmp_path / "model")
    assert torch.equal(model.encode_texts(["a dog"]), model.encode_texts([[2, 5, 6, 3]]))
    with pytest.raises(PolysemError, match="No tokenizer"):
        import_checkpoint(BERT, "vse-infty", tokenizer=tmp_path / "empty", bert_heads=2)
