import json
import os

import pytest

from polysem.errors import InputError
from polysem.synthetic import dataset_folder as folder
from polysem.synthetic.scenes.make import IMAGES, LAYOUT, LIST

MANIFEST = {"dataset": "emoji-scenes", "items": 2, "seed": 1}


def build(out):
    with folder.write_dataset(out, MANIFEST, LAYOUT) as partial:
        for index in range(2):
            (partial / "images" / f"{index}.png").write_bytes(b"picture")
        (partial / folder.LICENCE).write_text("licence")
        (partial / LIST).write_text("{}")


def test_a_whole_set_moves_into_place_and_nothing_else_stays(tmp_path):
    build(tmp_path / "new" / "set")
    assert sorted(os.listdir(tmp_path / "new" / "set")) == [
        *("LICENSE-art.txt", "dataset_emoji.json", "images", "manifest.json")
    ]
    assert folder.is_complete(tmp_path / "new" / "set", MANIFEST, LAYOUT)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_run_leaves_nothing(tmp_path, error):
    out = tmp_path / "set"

    def fail() -> None:
        with folder.write_dataset(out, MANIFEST, LAYOUT) as partial:
            (partial / "images" / "0.png").write_bytes(b"picture")
            raise error

    with pytest.raises(error):
        fail()
    assert not out.exists()


def test_a_killed_run_looks_unfinished_at_every_step_and_is_made_anew(tmp_path):
    for step in range(5):
        out = tmp_path / f"set{step}"
        partial = out / ".emoji-scenes.partial"
        (partial / "images").mkdir(parents=True)
        (partial / "images" / "stale.png").write_bytes(b"stale")
        for name in (folder.LICENCE, folder.MANIFEST, LIST):
            (partial / name).write_text(json.dumps(MANIFEST))
        for name in (IMAGES, folder.LICENCE, folder.MANIFEST)[: step if step < 4 else 0]:
            os.replace(partial / name, out / name)
        if step == 4:
            (partial / folder.MANIFEST).unlink()
        assert not folder.is_complete(out, MANIFEST, LAYOUT)
        assert not (out / LIST).exists()
        build(out)
        assert folder.is_complete(out, MANIFEST, LAYOUT)
        assert sorted(os.listdir(out / "images")) == ["0.png", "1.png"]


def test_another_set_is_not_overwritten(tmp_path):
    build(tmp_path / "set")
    with pytest.raises(InputError, match=r"another set of emoji scenes \(seed 1 instead of 2\)"):
        folder.is_complete(tmp_path / "set", MANIFEST | {"seed": 2}, LAYOUT)


def test_lost_pictures_are_noticed(tmp_path):
    build(tmp_path / "set")
    (tmp_path / "set" / "images" / "1.png").unlink()
    with pytest.raises(InputError, match="1 of 2 are there"):
        folder.is_complete(tmp_path / "set", MANIFEST, LAYOUT)


def test_foreign_files_are_left_alone(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"photo")
    with pytest.raises(InputError, match=r"not empty and holds no emoji scenes \(holiday.jpg"):
        folder.is_complete(tmp_path, MANIFEST, LAYOUT)
    (tmp_path / ".emoji-scenes.partial").mkdir()
    with pytest.raises(InputError, match="not empty"):
        folder.is_complete(tmp_path, MANIFEST, LAYOUT)


def test_a_file_in_the_way_is_an_error(tmp_path):
    (tmp_path / "file").write_text("x")
    for out in (tmp_path / "file", tmp_path / "file" / "set"):
        with pytest.raises(InputError, match="a file"):
            folder.is_complete(out, MANIFEST, LAYOUT)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(InputError, match="Cannot write to"),
        folder.write_dataset(tmp_path / "file" / "set", MANIFEST, LAYOUT),
    ):
        pass


def test_a_second_run_keeps_out(tmp_path):
    pytest.importorskip("fcntl")
    with folder.write_dataset(tmp_path / "set", MANIFEST, LAYOUT) as partial:
        with (
            pytest.raises(InputError, match="Another run is writing"),
            folder.write_dataset(tmp_path / "set", MANIFEST, LAYOUT),
        ):
            pass
        (partial / "images" / "0.png").write_bytes(b"still here")
        (partial / folder.LICENCE).write_text("")
        (partial / LIST).write_text("{}")
    assert (tmp_path / "set" / "images" / "0.png").exists()
