"""Layouts are told apart by the readers themselves; a new reader is one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polysem.data import Collection, Item, Media, Problems, open_collection
from polysem.data.readers.base import READERS, DataLocation, register_reader
from polysem.errors import ConfigError, UnknownNameError
from sample_data import noise


def test_readers_are_asked_in_the_order_of_their_priorities():
    order = [reader.read.__name__ for reader in READERS]
    assert order[:3] == ["read_karpathy", "read_precomp", "read_coco"]
    assert order[-3:] == ["read_video", "read_video_folder", "read_folder"]
    assert len({reader.priority for reader in READERS}) == len(READERS)


def test_a_new_reader_needs_nothing_but_its_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polysem.data.readers.base.READERS", readers := [*READERS])
    monkeypatch.setattr("polysem.data.readers.READERS", readers)

    def recognise(data: DataLocation) -> dict[str, Any] | None:
        return {"folder": data.path} if (data.path / "list.txt").is_file() else None

    @register_reader(recognise, priority=15)
    def read_list(folder: Path, shout: bool = False, problems: Problems | None = None) -> Collection:
        names = (folder / "list.txt").read_text().split()
        items = [Item(name, Media(folder, name), (name.upper() if shout else name,)) for name in names]
        return Collection("list", "image", items)

    noise(tmp_path / "a.png", 1)
    assert open_collection(tmp_path).captions == []
    (tmp_path / "list.txt").write_text("a.png")
    assert open_collection(tmp_path, shout=True).captions == ["A.PNG"]
    with pytest.raises(UnknownNameError, match="'loud'"):
        open_collection(tmp_path, loud=True)


def test_a_second_reader_of_the_same_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polysem.data.readers.base.READERS", readers := [*READERS])

    def read_coco(problems: Problems | None = None) -> Collection:
        raise NotImplementedError

    with pytest.raises(ConfigError, match=r"read_coco cannot be the reader 'read_coco': polysem\.data\.readers\.coco"):
        register_reader(lambda _: None, priority=1)(read_coco)
    assert readers == READERS


def test_a_table_takes_the_options_of_its_folder(tmp_path: Path) -> None:
    noise(tmp_path / "red" / "a.png", 1)
    table = tmp_path / "other.csv"
    table.write_text("image,caption\nred/a.png,a picture\n")
    assert open_collection(table, folder_labels=True)[0].labels == ("red",)
    with pytest.raises(UnknownNameError, match="'table'"):
        open_collection(table, table=table)
