"""What must hold for every encoder, whatever family its backbone is of."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from encoders import tiny_duals, tiny_models
from polysem import LocalFeatures, PolysemError, encoders
from support import alone, batch

PRETRAINED = list(tiny_models.FAMILIES)
TINY_RESNET = {"model_type": "resnet", **tiny_models.TINY_RESNET}
OTHERS = {
    "grids": {
        "name": "grids",
        "models": ["one", "another"],
        "sizes": [24, 32],
        "pretrained": False,
        "backbone_config": {"grids": [TINY_RESNET, {**TINY_RESNET, "hidden_sizes": [8, 8, 16], "depths": [1, 1, 1]}]},
    },
    "efficientnet": {"name": "grid", "pretrained": False, "image_size": 64},
    "video": {"name": "video_frames", "encoder": {"name": "grid", "pretrained": False, "image_size": 64}, "frames": 3},
    "onnx": {"name": "onnx"},
    "region": {"name": "region", "input_dim": 12, "dim": 8},
    "region-dive": {"name": "region", "input_dim": 12, "dim": 8, "form": "dive", "dropout": 0.1},
    "region-linear": {"name": "region", "input_dim": 12, "dim": 8, "form": "linear"},
    "frames": {"name": "frames", "input_dim": 12},
    "frames-projected": {"name": "frames", "input_dim": 12, "dim": 8},
    "dual_image": {
        "name": "dual_image",
        "model": "any",
        "pretrained": False,
        "backbone_config": tiny_duals.CLIP,
        "processor": {"image_processor_type": "CLIPImageProcessor", **tiny_duals.CROPPED},
    },
    "dual_text": {"name": "dual_text", "model": "any", "pretrained": False, "backbone_config": tiny_duals.CLIP},
    "bigru": {"name": "bigru", "vocab_size": 20, "dim": 8, "word_dim": 6},
    "bigru-words": {"name": "bigru", "vocab_size": 20, "dim": 8, "word_dim": 6, "local": "words", "dropout": 0.1},
}
TEXTS = ["a dog", "the red ball on the big grass", "cat"]
every_encoder = pytest.mark.parametrize("setting", [*PRETRAINED, *OTHERS])
every_backbone = pytest.mark.parametrize("setting", [*PRETRAINED, "efficientnet", "grids", "video"])


@pytest.fixture
def make(build, tmp_path_factory):
    def encoder(setting, **knobs):
        torch.manual_seed(0)
        if setting == "onnx":
            from encoders import tiny_onnx

            knobs["model"] = str(tiny_onnx.save_graph(tmp_path_factory.mktemp("graph") / "tiny.onnx", "with_cls"))
        return build(setting, **knobs) if setting in PRETRAINED else encoders.build(**OTHERS[setting], **knobs).eval()

    return encoder


def some_input(encoder, items=3):
    generator = torch.Generator().manual_seed(5)
    if encoder.takes == "pixels":
        frames = [encoder.frames] if encoder.kind == "video" else []
        return torch.randn(items, *frames, 3, encoder.image_size, encoder.image_size, generator=generator)
    if encoder.takes == "features":
        return batch(12, lengths=(5, 2, 1)[:items])
    if getattr(encoder, "tokenizer", None):
        return encoder.tokenize(TEXTS[:items])
    return encoders.Tokens.from_lists([[1, 7, 9, 2], [1, 3, 4, 5, 6, 19, 2], [4]][:items])


def one_of(given, item):
    if isinstance(given, torch.Tensor):
        return given[item : item + 1]
    if isinstance(given, LocalFeatures):
        return alone(given, item)
    length = int(given.lengths[item])
    return encoders.Tokens(given.ids[item : item + 1, :length], given.mask[item : item + 1, :length])


def test_every_registered_encoder_is_under_this_contract():
    covered = {knobs["name"] for knobs in OTHERS.values()} | set(tiny_models.ENCODER.values())
    assert covered == set(encoders.names())
    assert all(encoders.describe(name).summary for name in encoders.names())


@every_encoder
def test_an_item_alone_equals_the_item_in_a_batch(make, setting):
    encoder = make(setting)
    given = some_input(encoder)
    together = encoder(given)
    together.check(encoder.dim)
    for item in range(len(together)):
        by_itself = encoder(one_of(given, item))
        real = together.values[item][together.mask[item]]
        torch.testing.assert_close(by_itself.values[0], real, atol=1e-5, rtol=1e-5)
        if together.summary is not None:
            torch.testing.assert_close(by_itself.summary[0], together.summary[item], atol=1e-5, rtol=1e-5)


@every_encoder
def test_padding_holds_zeros_and_its_contents_never_matter(make, setting):
    encoder = make(setting)
    given = some_input(encoder)
    features = encoder(given)
    assert features.values[~features.mask].abs().sum() == 0
    if encoder.takes == "features":
        other = LocalFeatures(given.values.masked_fill(~given.mask[..., None], float("nan")), given.mask)
        assert torch.equal(encoder(other).values, features.values)
    if encoder.takes == "tokens":
        other = encoders.Tokens(given.ids.masked_fill(~given.mask, 5), given.mask)
        assert torch.equal(encoder(other).values, features.values)


@every_encoder
def test_saved_equals_loaded_without_the_files_it_came_from(make, setting, tmp_path, monkeypatch):
    encoder = make(setting)
    given = some_input(encoder)
    encoder.save_preprocessing(tmp_path)
    torch.save({"config": json.dumps(encoder.config), "state": encoder.state_dict()}, tmp_path / "encoder.pt")
    saved = torch.load(tmp_path / "encoder.pt", weights_only=True)

    def nowhere(model):
        raise AssertionError("weights must not be looked up again")

    monkeypatch.setattr("polysem.encoders.backbones.locate", nowhere)
    loaded = encoders.build(**json.loads(saved["config"])).eval()
    loaded.load_state_dict(saved["state"])
    if setting in tiny_models.TEXTS:
        with pytest.raises(PolysemError, match="load_preprocessing"):
            loaded.tokenize(TEXTS)
        loaded.load_preprocessing(tmp_path)
        assert torch.equal(loaded.tokenize(TEXTS).ids, given.ids)
    assert loaded.config == encoder.config
    assert loaded.fingerprint() == encoder.fingerprint()
    assert torch.equal(loaded(given).values, encoder(given).values)


@every_encoder
@pytest.mark.slow
def test_the_fingerprint_follows_weights_and_knobs_but_not_where_they_are_from(make, setting):
    encoder = make(setting)
    before = encoder.fingerprint()
    assert make(setting).fingerprint() == before
    encoder(some_input(encoder))
    assert encoder.train().fingerprint() == before
    assert make(setting, lr_scale=0.5).fingerprint() == before
    parameter = next(encoder.parameters(), None)
    if parameter is not None:
        with torch.no_grad():
            parameter.view(-1)[0] += 1e-3
        assert encoder.fingerprint() != before
    if encoder.kind == "image" and "mean" in encoder.config:
        assert make(setting, mean=[0.1, 0.2, 0.3]).fingerprint() != before


@every_encoder
def test_training_mode_returns_the_encoder_itself(make, setting):
    encoder = make(setting)
    assert encoder.train() is encoder
    assert encoder.eval() is encoder
    assert encoder.freeze() is encoder


@every_backbone
def test_a_frozen_body_neither_trains_nor_moves(make, setting):
    encoder = make(setting, dim=5, trainable="none").train()
    given = some_input(encoder)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    assert torch.equal(encoder(given).values, encoder(given).values)  # no dropout
    encoder(given).values.square().sum().backward()
    assert all(parameter.grad is None for parameter in encoder.body.parameters())
    assert encoder.projection.weight.grad.abs().sum() > 0
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.state_dict().items())


@pytest.mark.parametrize("setting", [*(f for f in PRETRAINED if f not in tiny_models.TEXTS), "efficientnet", "grids"])
def test_batch_norm_stays_in_evaluation_mode_while_all_trains(make, setting):
    encoder = make(setting, trainable="all").train()
    norms = [module for module in encoder.backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    assert all(parameter.requires_grad for parameter in encoder.body.parameters())
    assert encoder.backbone.training
    assert not any(norm.training for norm in norms)
    assert bool(norms) == (setting in ("resnet", "regnet", "efficientnet", "grids", "rt_detr", "d_fine"))


@every_backbone
def test_the_last_stages_can_train_alone(make, setting):
    encoder = make(setting)
    stages = encoder.stages()
    assert len(stages) >= 2
    encoder.set_trainable(1)
    assert all(parameter.requires_grad for parameter in stages[-1].parameters())
    assert not any(parameter.requires_grad for stage in stages[:-1] for parameter in stage.parameters())
    encoder.set_trainable(2)
    assert all(parameter.requires_grad for parameter in stages[-2].parameters())
    with pytest.raises(PolysemError, match=f"1 to {len(stages)}"):
        encoder.set_trainable(len(stages) + 1)
    encoder.set_trainable("all")
    assert all(parameter.requires_grad for parameter in encoder.parameters())


@every_encoder
def test_every_parameter_is_in_one_group_at_its_own_rate(make, setting):
    encoder = make(setting, lr_scale=0.1, **({"dim": 5} if setting in PRETRAINED else {}))
    groups = encoder.parameter_groups(lr=0.01, weight_decay=0.3)
    grouped = [parameter for group in groups for parameter in group["params"]]
    assert sorted(map(id, grouped)) == sorted(map(id, encoder.parameters()))
    assert all(group["weight_decay"] == 0.3 for group in groups)
    rates = {group["name"]: group["lr"] for group in groups}
    if setting in PRETRAINED:
        assert rates == pytest.approx({"body": 0.001, "head": 0.01})
    if grouped:
        torch.optim.AdamW(groups)


@pytest.mark.parametrize("setting", ["region", "bigru"])
def test_an_encoder_without_stages_says_so(make, setting):
    with pytest.raises(PolysemError, match="no stages"):
        make(setting).set_trainable(1)


@pytest.mark.slow
@every_backbone
def test_dim_projects_and_none_leaves_the_width(make, setting):
    plain, projected = make(setting), make(setting, dim=5)
    given = some_input(plain)
    assert plain(given).dim == plain.dim
    assert projected(given).dim == projected.dim == 5
    expected = projected.projection(plain(given).values)
    mask = projected(given).mask
    torch.testing.assert_close(projected(given).values[mask], expected[mask], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_the_fingerprint_is_the_same_in_every_process(saved):
    script = (
        "from polysem import encoders\n"
        f"print(encoders.build('patch', model={str(saved('vit'))!r}).fingerprint())\n"
        f"print(encoders.build('transformer', model={str(saved('bert'))!r}).fingerprint())\n"
    )
    here = [encoders.build("patch", model=str(saved("vit"))), encoders.build("transformer", model=str(saved("bert")))]
    environment = {"PYTHONHASHSEED": "1", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == [encoder.fingerprint() for encoder in here]
