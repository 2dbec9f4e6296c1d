from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from fake_packages import install
from polysem.environment import packages as module
from polysem.environment.packages import install_command, installed_version, required_packages


def by_name() -> dict[str, tuple[str, str | None, str]]:
    return {package.name: (package.group, package.installed, package.status) for package in required_packages()}


def test_a_requirement_is_met_at_its_lower_bound_and_unmet_below_it(site: Path) -> None:
    install(site, "polysem", "0.1.0", requires=["torch>=2.13", "numpy>=2.0", "rich>=13.8"])
    install(site, "torch", "2.13.0+cpu")
    install(site, "numpy", "1.26.4")
    assert by_name() == {
        "torch": ("core", "2.13.0+cpu", "ok"),
        "numpy": ("core", "1.26.4", "unsuitable"),
        "rich": ("core", None, "missing"),
    }


def test_versions_are_compared_as_numbers_not_as_text(site: Path) -> None:
    install(site, "polysem", "0.1.0", requires=["typer>=0.9"])
    install(site, "typer", "0.16.0")
    assert by_name()["typer"] == ("core", "0.16.0", "ok")


def test_a_nightly_build_newer_than_the_bound_is_suitable(site: Path) -> None:
    install(site, "polysem", "0.1.0", requires=["torch>=2.13"])
    install(site, "torch", "2.16.0.dev20260101+cu130")
    assert by_name()["torch"][2] == "ok"


def test_a_version_that_is_no_version_is_unsuitable(site: Path) -> None:
    install(site, "polysem", "0.1.0", requires=["torch>=2.13"])
    install(site, "torch", "mine")
    assert by_name()["torch"] == ("core", "mine", "unsuitable")


def test_the_requirements_of_an_extra_are_grouped_under_it_after_the_core(site: Path) -> None:
    requires = ['emoji>=2.16; extra == "offline"', "torch>=2.13", 'pytest>=8; extra == "test"']
    install(site, "polysem", "0.1.0", requires=requires)
    assert [(package.name, package.group) for package in required_packages()] == [
        ("torch", "core"),
        ("emoji", "offline"),
        ("pytest", "test"),
    ]


def test_a_requirement_for_another_platform_is_left_out(site: Path) -> None:
    requires = [
        "torch>=2.13",
        'colorama; sys_platform == "nowhere"',
        'emoji; sys_platform == "nowhere" and extra == "offline"',
    ]
    install(site, "polysem", "0.1.0", requires=requires)
    assert list(by_name()) == ["torch"]


def test_without_its_own_metadata_polysem_claims_no_requirements(site: Path) -> None:
    assert required_packages() == ()


def test_metadata_left_behind_without_a_version_counts_as_not_installed(site: Path) -> None:
    (site / "torch-2.13.0.dist-info").mkdir()
    assert installed_version("torch") is None


def test_a_checkout_is_told_to_install_itself_with_its_tested_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "source_checkout", lambda: tmp_path.resolve())
    assert install_command("offline", here=tmp_path) == "pip install -e '.[offline]' -c constraints.txt"
    assert install_command(here=tmp_path) == "pip install -e . -c constraints.txt"


def test_the_command_works_from_any_folder_even_when_the_path_has_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "my code"
    monkeypatch.setattr(module, "source_checkout", lambda: checkout)
    assert shlex.split(install_command("offline", here=tmp_path)) == [
        *("pip", "install", "-e", f"{checkout}[offline]"),
        *("-c", str(checkout / "constraints.txt")),
    ]


def test_a_copy_installed_from_a_wheel_is_told_to_use_the_package_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "source_checkout", lambda: None)
    assert install_command("offline") == "pip install 'polysem[offline]'"
    assert install_command() == "pip install polysem"


def test_a_folder_is_a_checkout_only_with_both_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "__file__", str(tmp_path / "src" / "polysem" / "environment" / "packages.py"))
    (tmp_path / "pyproject.toml").touch()
    assert module.source_checkout() is None
    (tmp_path / "constraints.txt").touch()
    assert module.source_checkout() == tmp_path.resolve()
