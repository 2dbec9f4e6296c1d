"""`polysem import`."""

import json

import pytest
import typer
from typer.testing import CliRunner

import polysem
from polysem import PolysemError
from polysem.cli.models import import_command
from support import FIXTURES

app = typer.Typer()
app.command()(import_command)

FILES = {
    "vse-infty": "checkpoint_vse_infty_bigru.pth",
    "vse-2ad": "checkpoint_vse_2ad_bigru.pth",
    "dive": "checkpoint_dive_bigru.pth.tar",
    "labelwise": "checkpoint_labelwise.pth.tar",
}


def run(source, out, *options, file=None):
    arguments = [str(FIXTURES / (file or FILES[source])), "--from", source, "--out", str(out), *options]
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


@pytest.mark.parametrize("source", FILES)
def test_a_checkpoint_becomes_a_model_folder(source, tmp_path):
    result = run(source, tmp_path / "model", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    model = polysem.load(tmp_path / "model")
    assert found["fingerprint"] == model.fingerprint()
    assert (found["dim"], found["image_vectors"]) == (model.dim, model.set_sizes[0])
    assert {part["place"] for part in found["parts"]} == set(model.parts())
    assert found["imported"] == model.provenance["imported"]


def test_the_table_says_what_was_imported_and_what_was_not(tmp_path):
    result = run("labelwise", tmp_path / "model", "--variant", "official")
    assert result.exit_code == 0, result.output
    assert "checkpoint_labelwise.pth.tar (labelwise, variant official)" in result.stdout
    assert "best_loss 1.234, Eiters 2 (as recorded there, not measured)" in result.stdout
    assert "region features with their boxes, (regions, 19); token ids" in result.stdout
    assert "fc_MLM and fc_MOC" in result.stdout
    assert "--vocabulary" in result.stdout


def test_bert_heads_reach_the_library(tmp_path):
    result = run("vse-infty", tmp_path / "model", "--bert-heads", "2", file="checkpoint_vse_infty_bert.pth")
    assert result.exit_code == 0, result.output
    assert polysem.load(tmp_path / "model").text.encoder.config["backbone_config"]["num_attention_heads"] == 2


def test_an_error_leaves_nothing_behind(tmp_path):
    result = run("vse-infty", tmp_path / "model", file=FILES["dive"])
    assert result.exit_code == 1
    assert isinstance(result.exception, PolysemError)
    assert not (tmp_path / "model").exists()
    run("dive", tmp_path / "model")
    before = {path: path.read_bytes() for path in (tmp_path / "model").rglob("*") if path.is_file()}
    (tmp_path / "broken.pth").write_bytes(b"PK")
    assert run("dive", tmp_path / "model", file=tmp_path / "broken.pth").exit_code == 1
    assert {path: path.read_bytes() for path in (tmp_path / "model").rglob("*") if path.is_file()} == before
