import json
import os

import pytest
import torch

from polysem.training import run_folder
from polysem.training.run_folder import CheckpointError, Checkpoints
from training.small import assembled, make_data, tiny


def some(step: int, **more: object) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    return {"model/a": torch.full((3,), float(step))}, {"step": step, **more}


def test_the_newest_is_kept_and_read(tmp_path):
    kept = Checkpoints(tmp_path)
    assert kept.load("last") is None
    for step in (1, 2, 10):
        kept.save("last", *some(step))
    assert kept.load("last")[1]["step"] == 10
    assert [path.name for path in kept.folder.iterdir()] == ["last-00000010"]


def test_best_and_last_do_not_meet(tmp_path):
    kept = Checkpoints(tmp_path)
    kept.save("best", *some(3))
    kept.save("last", *some(5))
    assert kept.load("best")[1]["step"] == 3
    assert kept.load("last")[1]["step"] == 5


def test_a_write_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    kept = Checkpoints(tmp_path)
    kept.save("last", *some(1))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(CheckpointError, match="No space left"):
        kept.save("last", *some(2))
    monkeypatch.undo()
    assert kept.load("last")[1]["step"] == 1
    kept.save("last", *some(2))
    assert kept.load("last")[1]["step"] == 2


def test_a_half_written_one_is_not_seen(tmp_path):
    kept = Checkpoints(tmp_path)
    kept.save("last", *some(1))
    (kept.folder / ".last.partial").mkdir()
    (kept.folder / ".last.partial" / "state.safetensors").write_bytes(b"half")
    assert kept.load("last")[1]["step"] == 1


def test_a_damaged_one_is_named(tmp_path):
    kept = Checkpoints(tmp_path)
    kept.save("last", *some(1))
    path = kept.folder / "last-00000001" / "state.safetensors"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(CheckpointError, match="last-00000001"):
        kept.load("last")


def test_collect_and_restore_are_inverse(tmp_path):
    recipe = tiny("vse-infty")
    data = make_data(tmp_path / "data")
    model = assembled(recipe, data)[0]
    from polysem.training import optimiser

    stepper = optimiser.build_optimiser(model, recipe.optimiser)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    stepper.step()
    kept = Checkpoints(tmp_path / "run")
    kept.save("last", run_folder.collect_tensors(model, stepper, frozenset()), {"step": 1})

    other = assembled(tiny("vse-infty", "training.seed=5"), data)[0]
    again = optimiser.build_optimiser(other, recipe.optimiser)
    run_folder.restore_tensors(other, again, kept.load("last")[0], frozenset())
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert stepper.state[one].keys() == again.state[two].keys()
        for slot in stepper.state[one]:
            assert torch.equal(stepper.state[one][slot], again.state[two][slot])


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    data = make_data(tmp_path)
    tensors = run_folder.collect_tensors(assembled(tiny("vse-infty"), data)[0], None, frozenset())
    with pytest.raises(CheckpointError, match="does not fit"):
        run_folder.restore_tensors(assembled(tiny("vse-2ad"), data)[0], None, tensors, frozenset())


def test_weights_that_rest_are_not_kept(tmp_path):
    model = assembled(tiny("vse-infty"), make_data(tmp_path))[0]
    tensors = run_folder.collect_tensors(model, None, frozenset({"image.encoder"}))
    assert not any(name.startswith("model/image.encoder.") for name in tensors)
    assert any(name.startswith("model/image.sets.") for name in tensors)


def test_state_is_plain_json(tmp_path):
    Checkpoints(tmp_path).save("last", *some(4))
    assert json.loads((tmp_path / "checkpoints" / "last-00000004" / "state.json").read_text()) == {"step": 4}


def test_saving_a_step_again_never_leaves_none(tmp_path, monkeypatch):
    kept = Checkpoints(tmp_path)
    kept.save("last", *some(4))
    real = os.rename

    def dying(*paths):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", dying)
    with pytest.raises(KeyboardInterrupt):
        kept.save("last", *some(4))
    assert kept.load("last")[1]["step"] == 4
    monkeypatch.setattr(os, "rename", real)
    kept.save("last", *some(4, again=True))
    assert kept.load("last")[1]["again"]
    kept.save("last", *some(5))
    assert [path.name for path in kept.folder.iterdir() if not path.name.startswith(".")] == ["last-00000005"]
