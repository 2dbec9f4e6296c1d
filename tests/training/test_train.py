"""A run from the first step to the model folder: exact, resumable, readable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import polysem
from polysem import recipes
from polysem.data import open_collection
from polysem.data.collection import Collection
from polysem.errors import ConfigError, InputError
from polysem.training import StoppedError, train
from polysem.training.backward import run_batch
from polysem.training.loop import TrainingLoop
from polysem.training.monitoring.diagnosis import TrainingMonitor
from polysem.training.splits import split
from training.killed_runs import killed_after
from training.small import TINY, make_data, tiny, weights
from waiting import wait_until

pytestmark = pytest.mark.slow

SLOTS = ("image.sets.head_dim=8", "text.sets.head_dim=8")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "toy")


def run(recipe, data, out, **options):
    return train(recipe, data, out, tracker=None, **options)


def test_a_finished_run_is_a_model_folder(data, tmp_path):
    result = run(tiny("vse-infty"), data, tmp_path / "run")
    model = polysem.load(tmp_path / "run")
    images = model.encode_images([torch.randn(5, 10), torch.randn(3, 10)])
    texts = model.encode_texts(["a red dog", "the large house"])
    assert images.shape == texts.shape == (2, 1, 16)
    assert model.similarity(images, texts).shape == (2, 2)
    assert result.status == "finished"
    assert result.best["rsum"] == pytest.approx(
        sum(result.best["i2t"].values()) + sum(result.best["t2i"].values()), abs=1e-9
    )
    for name in (
        "config.json",
        "model.safetensors",
        "README.md",
        "metrics.jsonl",
        "report.html",
        "recipe.yaml",
        "run.json",
    ):
        assert (tmp_path / "run" / name).is_file(), name
    assert "toy val, 8×40, hit rate, inductive, selected on val" in (tmp_path / "run" / "README.md").read_text()


@pytest.mark.slow
def test_the_saved_model_is_the_best_by_validation(data, tmp_path):
    result = run(tiny("vse-infty", "training.epochs=6"), data, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = {line["step"]: line["rsum"] for line in lines if line["kind"] == "validation"}
    assert result.best["rsum"] == max(found.values())
    assert result.best["step"] == min(step for step, rsum in found.items() if rsum == max(found.values()))


@pytest.mark.slow
def test_training_learns(data, tmp_path):
    result = run(
        tiny("vse-infty", "training.epochs=12", "training.validate_every=12", "optimiser.lr=1e-2"), data, tmp_path / "r"
    )
    lines = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "step"]
    assert sum(losses[-10:]) < 0.7 * sum(losses[20:30])  # from epoch 1 on, of the same objective
    assert result.best["rsum"] > 300


def test_metrics_tell_what_a_step_was(data, tmp_path):
    run(tiny("dive", *SLOTS), data, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    step = next(line for line in lines if line["kind"] == "step")
    assert {"i2t", "t2i", "mmd", "diversity"} <= step["parts"].keys()
    assert {"image.sets", "text.sets", "image.encoder.body"} <= step["lr"].keys()
    assert {"image", "text"} == step["variance"].keys()
    assert step["info"]["active"] > 0
    assert step["items_per_second"] > 0
    assert next(line for line in lines if line["kind"] == "validation")["log_variance"].keys() == {"image", "text"}


# ------------------------------------------------------------------------------------------------------------- resume


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["vse-infty", "dive", "vse-2ad"])
def test_a_run_cut_anywhere_ends_in_the_same_bits(recipe, data, tmp_path):
    overrides = SLOTS if recipe == "dive" else ()
    chosen = tiny(recipe, *overrides, "training.checkpoint_every=3", "training.captions=all")
    run(chosen, data, tmp_path / "straight")
    for after in (1, 8):
        cut = tmp_path / f"cut-{after}"
        with killed_after(after):
            run(chosen, data, cut)
        result = run(chosen, data, cut)
        assert after - 3 < result.resumed_from <= after
        assert same_run(tmp_path / "straight", cut)


def same_run(one: Path, other: Path) -> bool:
    """The same weights to the bit, the same optimiser, the same metrics."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    from safetensors.torch import load_file

    last = [load_file(next((r / "checkpoints").glob("last-*")) / "state.safetensors") for r in (one, other)]
    assert last[0].keys() == last[1].keys()
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[0])
    logs = []
    for folder in (one, other):
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            line.pop("seconds", None)
            line.pop("items_per_second", None)
        logs.append(lines)
    assert logs[0] == logs[1]
    return True


HELD = """
import threading
from polysem.cli import main
from polysem.training.loop import TrainingLoop
take_step = TrainingLoop.take_step

def held(self, batches, epoch):
    if self.step == {end}:
        threading.Event().wait()
    take_step(self, batches, epoch)

TrainingLoop.take_step = held
main()
"""


@pytest.mark.slow
def test_kill_9_and_the_same_command_end_in_the_same_bits(data, tmp_path):
    """The command line itself, killed as an out-of-memory killer would."""
    overrides = [*TINY, "training.epochs=3", "training.checkpoint_every=7", "training.validate_every=2"]

    def command(out: Path, end: int | None = None) -> list[str]:
        sets = [argument for override in overrides for argument in ("--set", override)]
        program = "from polysem.cli import main; main()" if end is None else HELD.format(end=end)
        return [sys.executable, "-c", program, "train", "vse-infty", "--data", str(data), "--out", str(out), *sets]

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run(recipes.load("vse-infty", overrides), data, tmp_path / "straight")
    cut = tmp_path / "cut"
    metrics = cut / "metrics.jsonl"

    def steps_written() -> int:
        return metrics.read_text().count('"kind": "step"') if metrics.exists() else 0

    for steps in (8, 20):  # the second time it has been resumed
        # It is killed wherever it is by then, but it cannot be at its end.
        held = command(cut, end=steps + 8)
        process = subprocess.Popen(held, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda p=process, n=steps: p.poll() is not None or steps_written() >= n)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    subprocess.run(command(cut), check=True, env=environment, capture_output=True)
    assert same_run(tmp_path / "straight", cut)


def test_a_finished_run_is_not_trained_again(data, tmp_path):
    first = run(tiny("vse-infty"), data, tmp_path / "run")
    before = (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns
    again = run(tiny("vse-infty"), data, tmp_path / "run")
    assert again.best == first.best
    assert (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns == before


def test_another_command_into_the_same_folder_is_refused(data, tmp_path):
    run(tiny("vse-infty"), data, tmp_path / "run")
    with pytest.raises(InputError, match=r"optimiser\.lr: 0\.0005 then, 0\.001 now"):
        run(tiny("vse-infty", "optimiser.lr=1e-3"), data, tmp_path / "run")


def test_other_data_into_the_same_folder_is_refused(data, tmp_path):
    run(tiny("vse-infty"), data, tmp_path / "run")
    other = make_data(tmp_path / "other", train=20)
    with pytest.raises(InputError, match="the data"):
        run(tiny("vse-infty"), other, tmp_path / "run")


def test_a_folder_with_other_things_in_it_is_left_alone(data, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="not empty"):
        run(tiny("vse-infty"), data, tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_two_runs_cannot_share_a_folder(data, tmp_path):
    from polysem.training import run_folder

    with run_folder.lock_folder(tmp_path / "run"), pytest.raises(InputError, match="Another process"):
        run(tiny("vse-infty"), data, tmp_path / "run")


# ---------------------------------------------------------------------------------------------------------------- data


def test_the_test_split_is_never_opened(data, tmp_path, monkeypatch):
    """Its features are made unreadable: whoever looks, fails."""
    import shutil

    copy = tmp_path / "toy"
    shutil.copytree(data, copy)
    for name in ("ims.npy", "caps.txt", "ids.txt"):
        shutil.copy(copy / f"dev_{name}", copy / f"test_{name}")
    (copy / "test_ids.txt").write_text("\n".join(f"test{i}" for i in range(8)) + "\n")
    from polysem.models import embedding

    real = embedding.load_features

    def guarded(media):
        assert not media.name.startswith("test")
        return real(media)

    monkeypatch.setattr(embedding, "load_features", guarded)
    assert run(tiny("vse-infty"), copy, tmp_path / "run").status == "finished"


def test_a_collection_without_a_validation_split_says_which_it_has(data, tmp_path):
    with pytest.raises(InputError, match=r"no split dev2; it has .*train.*--set data\.val="):
        run(tiny("vse-infty", "data.val=dev2"), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_where_only_test_is_there_beside_train_a_tenth_of_train_is_held_out(data):
    """As in NUS-WIDE: test must not pick the checkpoint."""
    items = [replace(item, split="test" if item.split == "val" else item.split) for item in open_collection(data)]
    found = split(Collection("two", "features", items), tiny("vse-infty").data)
    assert found.how == "10% held out by id"
    assert {item.split for item in [*found.train, *found.val]} == {"train"}
    assert not {item.id for item in found.train} & {item.id for item in found.val}
    assert len(found.train) + len(found.val) == 24


def test_validating_on_training_data_is_refused():
    with pytest.raises(ConfigError, match="measure memory"):
        tiny("vse-infty", "data.val=train")


def test_a_recipe_for_pictures_does_not_take_features(data, tmp_path):
    with pytest.raises(InputError, match="takes pictures"):
        run(recipes.load("small-vse-infty"), data, tmp_path / "run")


# ------------------------------------------------------------------------------------------------------------- dying


def test_a_run_that_explodes_stops_and_keeps_the_weights_before(data, tmp_path):
    dying = tiny("vse-infty", "optimiser.lr=1e30", "schedule.name=constant")
    with pytest.raises(StoppedError, match=r"optimiser\.lr"):
        run(dying, data, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "stopped"


def test_interrupting_leaves_a_checkpoint(data, tmp_path, monkeypatch):
    take_step = TrainingLoop.take_step

    def interrupted(self, batches, epoch):
        if self.step == 5:
            raise KeyboardInterrupt
        take_step(self, batches, epoch)

    monkeypatch.setattr(TrainingLoop, "take_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tiny("vse-infty"), data, tmp_path / "run")
    monkeypatch.setattr(TrainingLoop, "take_step", take_step)
    assert run(tiny("vse-infty"), data, tmp_path / "run").resumed_from == 5


def interrupt_once(monkeypatch, owner, name, when):
    """Make a method raise KeyboardInterrupt at the call for which `when` holds, once."""
    real, done = getattr(owner, name), []

    def raising(self, *arguments, **options):
        if not done and when(self):
            done.append(True)
            raise KeyboardInterrupt
        return real(self, *arguments, **options)

    monkeypatch.setattr(owner, name, raising)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["within a step", "after the optimiser", "in a validation"])
def test_ctrl_c_anywhere_ends_in_the_same_bits(where, data, tmp_path, monkeypatch):
    from polysem.training.backward import Criterion

    chosen = tiny("vse-infty", "training.checkpoint_every=4")
    run(chosen, data, tmp_path / "straight")
    calls = []
    if where == "within a step":
        interrupt_once(monkeypatch, Criterion, "forward", lambda _: calls.append(1) or len(calls) == 6)
    elif where == "after the optimiser":
        interrupt_once(monkeypatch, torch.optim.AdamW, "zero_grad", lambda _: calls.append(1) or len(calls) == 6)
    else:
        interrupt_once(monkeypatch, TrainingLoop, "validate_epoch", lambda loop: loop.step == 2 * loop.steps_per_epoch)
    with pytest.raises(KeyboardInterrupt):
        run(chosen, data, tmp_path / "cut")
    assert json.loads((tmp_path / "cut" / "run.json").read_text())["status"] == "interrupted"
    assert run(chosen, data, tmp_path / "cut").status == "finished"
    assert same_run(tmp_path / "straight", tmp_path / "cut")


def test_a_crash_is_written_down(data, tmp_path, monkeypatch):
    def broken(self, batches, epoch):
        raise OSError("the disk is gone")

    monkeypatch.setattr(TrainingLoop, "take_step", broken)
    with pytest.raises(OSError, match="disk"):
        run(tiny("vse-infty"), data, tmp_path / "run")
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    assert content["status"] == "failed"
    assert "disk" in content["error"]


def test_more_accumulation_than_batches_is_refused(data, tmp_path):
    with pytest.raises(ConfigError, match=r"training\.accumulate=50 .* 20 of an epoch"):
        run(tiny("vse-infty", "training.accumulate=50"), data, tmp_path / "run")


def test_accumulation_and_rest_resume_to_the_same_bits(data, tmp_path, monkeypatch):
    chosen = tiny("dive-mp", *SLOTS, "training.accumulate=2", "text.frozen_epochs=1", "similarity.learnable=true")
    run(chosen, data, tmp_path / "straight")
    interrupt_once(monkeypatch, TrainingLoop, "take_step", lambda loop: loop.step == loop.steps_per_epoch + 1)
    with pytest.raises(KeyboardInterrupt):
        run(chosen, data, tmp_path / "cut")
    run(chosen, data, tmp_path / "cut")
    assert same_run(tmp_path / "straight", tmp_path / "cut")


def test_the_log_holds_the_mean_of_accumulated_batches(data, tmp_path, monkeypatch):
    seen, observed = [], []

    def noted(*given):
        seen.append(run_batch(*given))
        return seen[-1]

    monkeypatch.setattr("polysem.training.loop.run_batch", noted)
    monkeypatch.setattr(TrainingMonitor, "observe", lambda _, facts: observed.append(facts) or [])
    chosen = tiny("dive-mp", *SLOTS, "training.accumulate=2", "training.epochs=1")
    lines = (run(chosen, data, tmp_path / "run").run / "metrics.jsonl").read_text().splitlines()
    steps = [record for record in map(json.loads, lines) if record["kind"] == "step"]
    assert len(seen) == 2 * len(steps) == 2 * len(observed)
    for number, (record, facts) in enumerate(zip(steps, observed, strict=True)):
        (loss_a, a), (loss_b, b) = seen[2 * number : 2 * number + 2]
        assert record["loss"] == pytest.approx(float(loss_a.total + loss_b.total) / 2)
        assert record["parts"].keys() == loss_a.parts.keys()
        for name, part in record["parts"].items():
            assert part == pytest.approx(float(loss_a.parts[name] + loss_b.parts[name]) / 2)
        assert (facts.loss, facts.score_spread) == ((a.loss + b.loss) / 2, (a.score_spread + b.score_spread) / 2)
        assert facts.collapse == a.collapse
        for side in ("image", "text"):
            assert record["variance"][side] == facts.variance[side] == (a.variance[side] + b.variance[side]) / 2
            shares = zip(a.gradient_shares[side], b.gradient_shares[side], strict=True)
            assert facts.gradient_shares[side] == tuple(sum(pair) / 2 for pair in shares)


def test_a_side_that_rests_whole_trains_later(data, tmp_path):
    chosen = tiny("vse-infty", "text.frozen_epochs=1", "text.sets={name: single, pooling: mean}")
    assert run(chosen, data, tmp_path / "run").status == "finished"


def test_a_width_that_is_not_the_datas_is_named(data, tmp_path):
    with pytest.raises(ConfigError, match="width 10"):
        run(tiny("vse-infty", "image.encoder.input_dim=2048"), data, tmp_path / "run")


def test_a_model_does_not_replace_a_users_files(data, tmp_path):
    result = run(tiny("vse-infty"), data, tmp_path / "run")
    mine = tmp_path / "mine"
    (mine / "preprocessing").mkdir(parents=True)
    (mine / "preprocessing" / "clean.py").write_text("x = 1")
    with pytest.raises(polysem.PolysemError, match="files of yours"):
        polysem.load(result.run).save(mine)
    assert (mine / "preprocessing" / "clean.py").read_text() == "x = 1"
    polysem.load(result.run).save(tmp_path / "copy")
    polysem.load(tmp_path / "copy").save(tmp_path / "copy")
    assert polysem.load(tmp_path / "copy").fingerprint() == polysem.load(result.run).fingerprint()
