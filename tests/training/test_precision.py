"""`training.precision` on a processor: used where it works and pays, refused where it would kill the process."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from polysem.environment.precision import Precision
from polysem.errors import ConfigError
from polysem.training import train
from polysem.training.loop import NullObserver
from polysem.training.train import _choose_precision
from training.small import make_data, tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def run(recipe, data, out, **options):
    return train(recipe, data, out, tracker=None, **options)


@pytest.fixture
def processor(monkeypatch):
    """A machine without an accelerator whose processor answers the trial of bfloat16 as given."""

    def install(found: Precision) -> None:
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
        monkeypatch.setattr(sys.modules["polysem.training.train"], "reduced_precision", lambda dtype: found)

    return install


class Findings(NullObserver):
    def __init__(self) -> None:
        self.names: list[str] = []

    def finding(self, finding) -> None:
        self.names.append(finding.name)


def test_bf16_that_would_kill_the_process_is_refused_with_the_remedy(data, tmp_path, processor):
    processor(Precision("bf16", False, None, "killed by SIGILL", "AVX512_CORE_BF16"))
    with pytest.raises(ConfigError, match=r"killed by SIGILL.*ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16.*fp32"):
        run(tiny("vse-infty", "training.precision=bf16"), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("asked", "speedup", "used"), [("bf16", 0.05, "no"), ("fp16", 2.0, "no"), ("fp32", 2.0, "no")])
def test_where_reduced_precision_does_not_pay_float32_is_used_and_said(data, tmp_path, processor, asked, speedup, used):
    processor(Precision("bf16", True, speedup))
    told = Findings()
    run(tiny("vse-infty", f"training.precision={asked}", "training.epochs=1"), data, tmp_path / "run", show=told)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["precision"] == used
    assert ("float32 instead" in told.names) == (asked != "fp32")


def test_bf16_trains_where_it_works_and_a_run_keeps_its_precision(data, tmp_path, processor, needs_bf16):
    processor(Precision("bf16", True, 2.0))
    bf16 = tiny("vse-infty", "training.precision=bf16", "training.epochs=1")
    run(bf16, data, tmp_path / "run")
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    assert content["precision"] == "bf16"
    assert content["best"]["rsum"] > 0
    processor(Precision("bf16", True, 0.9))
    assert _choose_precision("bf16", {"precision": "bf16"}) == ("bf16", [])
    processor(Precision("bf16", True, 2.0))
    assert _choose_precision("bf16", {"precision": "no"})[0] == "fp32"
