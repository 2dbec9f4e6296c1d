"""Files that are replaced whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from polysem.atomic_write import replacing, write_text


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

    with pytest.raises(KeyboardInterrupt), replacing(path) as aside:
        half(aside)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "nowhere" / "a.txt", "new")
