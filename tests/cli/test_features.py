"""`polysem features`, with a toy encoder in place of a pretrained one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import polysem.encoders
from polysem.cli.data import features_command
from polysem.data.store import FeatureStore
from polysem.errors import ConfigError, PolysemError
from toy_extraction import pictures, registry

app = typer.Typer()
app.command()(features_command)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(polysem.encoders, "build", registry.build)
    pictures(tmp_path / "toys", 9)
    return tmp_path


def run(folder: Path, *options: str) -> Result:
    arguments = [str(folder / "toys"), "--encoder", "toy", "--out", str(folder / "store"), "--device", "cpu", *options]
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


def summary(folder: Path, *options: str) -> dict[str, Any]:
    result = run(folder, *options, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_folder_of_pictures_becomes_a_store(folder: Path) -> None:
    result = run(folder)
    assert result.exit_code == 0, result.output
    store = FeatureStore.open(folder / "store")
    assert len(store) == 9
    assert re.search(r"Images +│ 9 \(9 now", result.stdout)
    assert f"{int(store.lengths.sum())}" in result.stdout
    assert "images/s" in result.stdout


def test_the_summary_as_json_counts_everything_and_lists_the_skipped(folder: Path) -> None:
    (folder / "toys" / "004.png").write_bytes(b"")
    found = summary(folder)
    store = FeatureStore.open(folder / "store")
    assert (found["items"], found["extracted"], found["resumed"]) == (8, 8, 0)
    assert (found["tokens"], found["bytes"]) == (store.lengths.sum(), store.nbytes)
    assert len(found["skipped"]) == 1
    assert "empty" in found["skipped"][0]["why"]
    assert found["per_second"] > 0


def test_a_second_run_says_that_nothing_was_left(folder: Path) -> None:
    run(folder)
    assert "nothing was left to do" in run(folder).stdout
    assert summary(folder)["resumed"] == 9


def test_knobs_and_dtype_reach_the_encoder_and_the_store(folder: Path) -> None:
    run(folder, "--set", "dim=3", "--dtype", "float32")
    store = FeatureStore.open(folder / "store")
    assert (store.dim, store.manifest.dtype) == (3, "float32")


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("models=[lite2, lite0]", ["lite2", "lite0"]),
        ('models=["lite2", "lite0"]', ["lite2", "lite0"]),
        ("encoder={name: grid, dim: null}", {"name": "grid", "dim": None}),
        ("model=./some folder", "./some folder"),
        ("lr_scale=5e-4", 5e-4),
        ("resize=on", "on"),
    ],
)
def test_a_knob_is_read_as_in_a_recipe(
    folder: Path, monkeypatch: pytest.MonkeyPatch, given: str, value: object
) -> None:
    seen: dict[str, object] = {}

    def build(_: str, **knobs: object) -> None:
        seen.update(knobs)
        raise ConfigError("seen enough")

    monkeypatch.setattr(polysem.encoders, "build", build)
    assert "seen enough" in str(run(folder, "--set", given).exception)
    assert seen == {given.partition("=")[0]: value}


def test_each_process_of_a_launcher_takes_its_share(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert summary(folder)["extracted"] == 4
    monkeypatch.setenv("RANK", "0")
    assert "process 1 of 2" in run(folder).stdout
    assert len(FeatureStore.open(folder / "store")) == 9


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (("--set", "dim"), ConfigError, "KEY=VALUE"),
        (("--set", "dim=[1, 2"), ConfigError, "not readable YAML"),
        (("--dtype", "int8"), ConfigError, "float16 or float32"),
        (("--device", "abacus"), ConfigError, "Cannot use the device 'abacus'"),
        (("--batch-size", "-1"), ConfigError, "batch_size must be at least 1"),
        (("--split", "elsewhere"), PolysemError, "elsewhere"),
    ],
)
def test_a_mistake_is_met_with_its_message(
    folder: Path, options: tuple[str, ...], error: type[Exception], message: str
) -> None:
    result = run(folder, *options)
    assert isinstance(result.exception, error)
    assert message in str(result.exception)
    assert not (folder / "store").exists()


def test_a_rank_that_is_no_number_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")
    assert "RANK must be a whole number" in str(run(folder).exception)
