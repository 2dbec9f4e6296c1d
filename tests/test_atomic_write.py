"""Files that are replaced whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from polysem.atomic_write import create_file, hold_lock, replace_file, write_text
from polysem.errors import InputError


def test_a_text_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    for text in ("old", "nëw"):
        write_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def half(aside: Path) -> None:
        assert aside.suffix == ".png"  # libraries go by the ending
        aside.write_bytes(b"ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), replace_file(path) as aside:
        half(aside)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "nowhere" / "a.txt", "new")


def test_a_durable_write_syncs_the_file_before_it_takes_its_place_and_the_folder_after(tmp_path, monkeypatch):
    steps: list[str] = []
    sync, replace = os.fsync, os.replace

    def note_sync(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def note_replace(*paths: Path) -> None:
        steps.append("replace")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_text(tmp_path / "a.txt", "new", durable=True)
    assert steps == ["file", "replace", *(["folder"] if os.name == "posix" else [])]


def test_a_file_is_created_once(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert create_file(path, b"first")
    assert not create_file(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="no such locks")
@pytest.mark.parametrize("name", [".lock", "."])
def test_a_lock_keeps_a_second_holder_out_until_its_block_ends(tmp_path: Path, name: str) -> None:
    busy = InputError("busy")
    with hold_lock(tmp_path / name, busy), pytest.raises(InputError, match="busy"), hold_lock(tmp_path / name, busy):
        pass
    with hold_lock(tmp_path / name, busy):
        pass
