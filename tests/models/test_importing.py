"""Released checkpoints: imported, saved and loaded, they embed as the authors' own code did."""

import argparse
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import polysem
from polysem import LocalFeatures, PolysemError
from polysem.encoders import Tokens
from polysem.models import import_checkpoint
from polysem.models.importing.checkpoint import CheckpointTensors, ReleasedCheckpoint
from polysem.models.importing.plans import plan_labelwise
from support import FIXTURES, assert_close, load_case


@dataclass(frozen=True)
class Released:
    """leaks: whether the released code lets padding in. knobs: what its file leaves open."""

    file: str
    source: str
    leaks: bool
    outputs: tuple[str, str]
    knobs: dict[str, Any]

    @property
    def case(self):
        return load_case(self.file.split(".")[0])

    @property
    def images(self):
        values = self.case.input["features"]
        if self.source == "labelwise":
            values = torch.cat([values, self.case.input["boxes"]], dim=-1)
            return LocalFeatures.from_lengths(values, [values.shape[1]] * len(values))
        return LocalFeatures.from_lengths(values, self.case.input["img_lengths"])

    @property
    def texts(self):
        ids, lengths = self.case.input["captions"], self.case.input["txt_lengths"]
        return Tokens(ids, torch.arange(ids.shape[1]) < lengths[:, None])

    def expected(self, side, alone):
        found = self.case.output[self.outputs[side] + ("_alone" if alone else "")]
        return found if found.ndim == 3 else found[:, None]

    def read(self, **knobs):
        return import_checkpoint(FIXTURES / self.file, self.source, **{**self.knobs, **knobs})


EMBEDDING = ("img_embedding", "txt_embedding")
RELEASED = {
    "vse_infty_bigru": Released("checkpoint_vse_infty_bigru.pth", "vse-infty", False, EMBEDDING, {}),
    "vse_infty_bert": Released("checkpoint_vse_infty_bert.pth", "vse-infty", False, EMBEDDING, {"bert_heads": 2}),
    "vse_2ad": Released("checkpoint_vse_2ad_bigru.pth", "vse-2ad", True, EMBEDDING, {}),
    "dive": Released("checkpoint_dive_bigru.pth.tar", "dive", True, ("img_set", "txt_set"), {}),
    "labelwise": Released("checkpoint_labelwise.pth.tar", "labelwise", True, ("img_vector", "txt_vector"), {}),
}
every_checkpoint = pytest.mark.parametrize("name", RELEASED)


def saved_and_loaded(model, folder):
    model.save(folder)
    return polysem.load(folder)


@every_checkpoint
def test_in_the_official_variant_padded_batches_come_out_as_theirs(name, tmp_path):
    released = RELEASED[name]
    model = saved_and_loaded(released.read(variant="official"), tmp_path)
    images = model.encode_images(released.images)
    with torch.inference_mode():  # encode_texts() would pad anew
        texts = model.text(released.texts).vectors
    assert_close(images, released.expected(0, alone=False), atol=1e-6)
    assert_close(texts, released.expected(1, alone=False), atol=1e-6)
    if "similarity" in released.case.output:
        assert_close(model.similarity(images, texts), released.case.output["similarity"], atol=1e-6)


@every_checkpoint
def test_in_the_paper_variant_items_come_out_as_theirs_without_padding(name, tmp_path):
    released = RELEASED[name]
    model = saved_and_loaded(released.read(), tmp_path)
    ids = [row[mask].tolist() for row, mask in zip(released.texts.ids, released.texts.mask, strict=True)]
    images, texts = model.encode_images(released.images), model.encode_texts(ids)
    alone = released.leaks and name != "labelwise"
    assert_close(images, released.expected(0, alone), atol=1e-6)
    if name != "labelwise":
        assert_close(texts, released.expected(1, alone), atol=1e-6)
    else:
        # Its case holds padded texts alone; the longest of them has no padding.
        assert_close(texts[0], released.expected(1, alone=False)[0], atol=1e-6)
        official = released.read(variant="official")
        single = torch.cat([official.encode_texts([row]) for row in ids])
        assert_close(texts, single, atol=1e-6)
    assert_close(torch.cat([model.encode_texts([row]) for row in ids]), texts, atol=1e-6)


@every_checkpoint
def test_saved_and_loaded_it_is_the_same_model(name, tmp_path):
    model = RELEASED[name].read()
    loaded = saved_and_loaded(model, tmp_path)
    assert loaded.fingerprint() == model.fingerprint()
    assert torch.equal(loaded.encode_images(RELEASED[name].images), model.encode_images(RELEASED[name].images))
    assert loaded.provenance == model.provenance


@every_checkpoint
def test_the_serialisation_before_torch_1_6_is_read(name, tmp_path):
    released = RELEASED[name]
    again = tmp_path / "legacy.pth"
    torch.save(content(released), again, _use_new_zipfile_serialization=False)
    model = import_checkpoint(again, released.source, **released.knobs)
    assert model.fingerprint() == released.read().fingerprint()


@every_checkpoint
@pytest.mark.parametrize("wrapped", [True, False])
def test_data_parallel_prefixes_make_no_difference(name, wrapped, tmp_path):
    released = RELEASED[name]
    held = content(released)

    def named(state):
        return {"module." * wrapped + key.removeprefix("module."): tensor for key, tensor in state.items()}

    model = held["model"]
    held["model"] = [named(state) for state in model] if isinstance(model, list) else named(model)
    torch.save(held, tmp_path / "again.pth")
    found = import_checkpoint(tmp_path / "again.pth", released.source, **released.knobs)
    assert found.fingerprint() == released.read().fingerprint()


def content(released):
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(FIXTURES / released.file, map_location="cpu", weights_only=True)


def changed(name, tmp_path, change):
    """The checkpoint after `change` has been at its content."""
    held = content(RELEASED[name])
    change(held)
    torch.save(held, tmp_path / "changed.pth")
    return import_checkpoint(tmp_path / "changed.pth", RELEASED[name].source, **RELEASED[name].knobs)


def test_provenance_says_where_it_comes_from_and_the_card_shows_it(tmp_path):
    model = RELEASED["dive"].read()
    origin = model.provenance["imported"]
    assert (origin["from"], origin["file"]) == ("dive", "checkpoint_dive_bigru.pth.tar")
    assert (origin["variant"], origin["epoch"], origin["recorded"]) == ("paper", 4, {"best_score": 288.1})
    model.save(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "# dive, imported" in card
    assert "not measured here: data coco_butd, epoch 4, best_score 288.1." in card
    assert "4 unit vector(s)" in card


def test_the_boxes_take_part_in_the_label_wise_model(tmp_path):
    released = RELEASED["labelwise"]
    model = released.read()
    values = released.images.values
    assert values.shape[2] == 14 + 5
    moved = torch.cat([values[..., :14], values[..., 14:] + 1e4], dim=-1)
    everywhere = [values.shape[1]] * len(values)
    difference = model.encode_images(released.images) - model.encode_images(
        LocalFeatures.from_lengths(moved, everywhere)
    )
    assert difference.abs().max() > 1e-3
    assert model.image.sets is model.text.sets
    model.save(tmp_path)
    assert "1 vector(s)" in (tmp_path / "README.md").read_text(encoding="utf-8")  # not of unit length


def test_the_label_wise_encoders_before_they_are_shared():
    case = load_case("labelwise_encoders")
    weight = {
        side: {key.removeprefix(f"{side}."): t for key, t in case.weight.items() if key.startswith(side)}
        for side in ("image", "text")
    }
    head = {"fc_predict.weight": torch.zeros(6, 8), "fc_predict.bias": torch.zeros(6)}
    shared = load_case("labelwise_shared").weight
    narrow = {
        key.removeprefix("transformer."): tensor[
            tuple(slice(8) if size == 16 else slice(None) for size in tensor.shape)
        ]
        for key, tensor in shared.items()
        if key.startswith("transformer.")
    }
    states = {**weight, "transformer": narrow, "head": head}
    tensors = {key: CheckpointTensors(key, state) for key, state in states.items()}
    model = plan_labelwise(ReleasedCheckpoint("toy", tensors, {}, {}, "official")).build("toy")
    values = torch.cat([case.input["features"], case.input["boxes"]], dim=-1)
    with torch.inference_mode():
        images = model.image.encode(LocalFeatures.from_lengths(values, [values.shape[1]] * len(values)))[1]
        mask = torch.arange(case.input["captions"].shape[1]) < case.input["lengths"][:, None]
        texts = model.text.encode(Tokens(case.input["captions"], mask))[1]
    assert_close(images.values, case.output["image"], atol=2e-6)
    assert_close(texts.values, case.output["text"], atol=2e-6)


def test_label_wise_vectors_are_compared_by_cosine_and_on_coco_by_their_product(tmp_path):
    def coco(held):
        held["opt"].data_name = "coco_precomp"

    for model, product in ((RELEASED["labelwise"].read(), False), (changed("labelwise", tmp_path, coco), True)):
        images = model.encode_images(RELEASED["labelwise"].images)
        texts = model.encode_texts(RELEASED["labelwise"].texts)
        assert images.norm(dim=-1).max() < 0.9999
        plain = images[:, 0] @ texts[:, 0].t()
        cosine = plain / images[:, 0].norm(dim=-1)[:, None] / texts[:, 0].norm(dim=-1)
        assert_close(model.similarity(images, texts), plain if product else cosine, atol=1e-6)


def test_untied_layers_of_dive_are_all_taken(tmp_path):
    def untie(held):
        held["args"].spm_weight_sharing = False
        name = "img_enc.spm.agg_block.layers.2.0.norm.weight"
        held["model"][name] = held["model"][name] + 1

    model = changed("dive", tmp_path, untie)
    assert len(model.image.sets.block.updates) == 4
    first, third = (model.image.sets.block.updates[n].attention.norm.weight for n in (0, 2))
    assert_close(third, first + 1, atol=1e-6)


def test_what_options_of_dive_its_tensors_show_is_read_from_them(tmp_path):
    def forget(held):
        del held["args"].spm_depth, held["args"].spm_weight_sharing

    assert changed("dive", tmp_path, forget).fingerprint() == RELEASED["dive"].read().fingerprint()


def test_the_heads_of_bert_are_the_usual_ones_or_asked_for(tmp_path):
    with pytest.raises(PolysemError, match=r"width 16 does not divide.*--bert-heads"):
        RELEASED["vse_infty_bert"].read(bert_heads=None)
    with pytest.raises(PolysemError, match=r"width 16 cannot have 3 heads"):
        RELEASED["vse_infty_bert"].read(bert_heads=3)
    with pytest.raises(PolysemError, match=r"BiGRU.*Leave out --bert-heads"):
        RELEASED["dive"].read(bert_heads=2)

    def with_positions(held):  # as transformers 3.x to 4.30 wrote them
        held["model"][1]["module.bert.embeddings.position_ids"] = torch.arange(24)[None]

    model = changed("vse_infty_bert", tmp_path, with_positions)
    assert model.fingerprint() == RELEASED["vse_infty_bert"].read().fingerprint()
    config = model.text.encoder.config["backbone_config"]
    assert (config["num_hidden_layers"], config["intermediate_size"], config["max_position_embeddings"]) == (2, 24, 24)


def test_importing_again_replaces_the_model_and_keeps_other_files(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    RELEASED["vse_infty_bert"].read().save(tmp_path)
    model = RELEASED["vse_2ad"].read()
    model.save(tmp_path)
    assert polysem.load(tmp_path).fingerprint() == model.fingerprint()
    assert (tmp_path / "notes.txt").read_text() == "mine"
