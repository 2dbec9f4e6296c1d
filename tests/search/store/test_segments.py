"""Segments: what is written comes back, damage is found and named, half a file never is a segment."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polysem.search.store import SearchError, segments
from polysem.search.store.segments import Column, Damage, Segment


def vectors(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 4, 8), np.float32)


def written(path: Path, rows: int = 5) -> np.ndarray:
    given = vectors(rows)
    segments.write(path, {"vectors": Column.of(given)})
    return given


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    sketch, norms = np.arange(10, dtype=np.int8).reshape(5, 2), np.arange(5, dtype=np.float64)
    columns = {"vectors": Column.of(vectors(5), "float16"), "sketch": Column.of(sketch), "norms": Column.of(norms)}
    size = segments.write(tmp_path / "a.seg", columns)
    segment = Segment.open(tmp_path / "a.seg")
    assert len(segment.arrays["vectors"]) == 5
    assert size == segment.bytes == (tmp_path / "a.seg").stat().st_size
    np.testing.assert_array_equal(segment.arrays["vectors"], vectors(5).astype(np.float16))
    np.testing.assert_array_equal(segment.arrays["sketch"], sketch)
    np.testing.assert_array_equal(segment.arrays["norms"], norms)
    assert segment.verify() == []
    assert os.listdir(tmp_path) == ["a.seg"]


def test_arrays_are_aligned_and_cannot_be_changed(tmp_path: Path) -> None:
    columns = {"odd": Column.of(np.ones((3, 7), np.int8)), "vectors": Column.of(vectors(3))}
    segments.write(tmp_path / "a.seg", columns)
    array = Segment.open(tmp_path / "a.seg").arrays["vectors"]
    assert array.ctypes.data % 64 == 0
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 0


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6), chunk=st.sampled_from([1, 200, 300, 2**20]))
def test_blocks_of_any_size_make_the_same_file(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], chunk: int
) -> None:
    folder = tmp_path_factory.mktemp("blocks")
    whole = vectors(sum(sizes))
    blocks = np.split(whole, np.cumsum(sizes)[:-1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "_CHUNK", chunk)
        segments.write(folder / "a.seg", {"vectors": Column(whole.dtype, (4, 8), iter(blocks))})
        segments.write(folder / "b.seg", {"vectors": Column.of(whole)})
        assert Segment.open(folder / "a.seg").verify() == []
    assert (folder / "a.seg").read_bytes() == (folder / "b.seg").read_bytes()


def test_damage_is_located_to_the_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_CHUNK", 2 * 4 * 8 * 4)  # two rows
    written(tmp_path / "a.seg", rows=7)
    row = 4 * 8 * 4
    flip(tmp_path / "a.seg", 64 + 5 * row)
    segment = Segment.open(tmp_path / "a.seg")
    assert segment.verify() == [Damage("a.seg", range(4, 6), "the checksum of 'vectors' differs")]
    assert str(segment.verify()[0]) == "a.seg, rows 4 to 5: the checksum of 'vectors' differs"
    assert segment.verify(np.arange(7) < 4) == []
    assert len(segment.verify(np.arange(7) == 4)) == 1


def test_a_flipped_bit_anywhere_that_matters_is_found(tmp_path: Path) -> None:
    """Every byte but the padding between arrays is covered by a checksum or by the meaning of the head."""
    path = tmp_path / "a.seg"
    written(path, rows=1)
    content = path.read_bytes()
    padding = range(32, 64)
    missed = []
    for place in range(len(content)):
        flip(path, place)
        try:
            found = bool(Segment.open(path).verify())
        except SearchError:
            found = True
        if not found:
            missed.append(place)
        path.write_bytes(content)
    assert missed == list(padding)


def test_a_truncated_file_is_refused_at_every_length(tmp_path: Path) -> None:
    path = tmp_path / "a.seg"
    written(path, rows=1)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(SearchError, match=r"a\.seg is damaged"):
            Segment.open(path)


def test_a_newer_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_VERSION", 9)
    written(tmp_path / "a.seg")
    monkeypatch.undo()
    with pytest.raises(SearchError, match="version 9, this polysem reads 1"):
        Segment.open(tmp_path / "a.seg")


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def stops() -> object:
        yield vectors(2)
        raise OSError(28, "No space left on device")

    with pytest.raises(
        SearchError, match=r"Cannot write .*a\.seg: No space left.*free some space.*run the command again"
    ):
        segments.write(tmp_path / "a.seg", {"vectors": Column(np.dtype("f4"), (4, 8), stops())})
    assert os.listdir(tmp_path) == []


def test_arrays_may_have_their_own_length_and_something_to_say(tmp_path: Path) -> None:
    arrays = {"rotation": np.eye(3), "sketch": np.ones((7, 2, 5), np.int8), "none": np.empty((4, 0))}
    columns = {name: Column.of(array) for name, array in arrays.items()}
    segments.write(tmp_path / "a.seg", columns, {"plan": [1, 2]})
    segment = Segment.open(tmp_path / "a.seg")
    assert segment.about == {"plan": [1, 2]}
    assert segment.verify() == []
    for name, array in arrays.items():
        np.testing.assert_array_equal(segment.arrays[name], array)
        np.testing.assert_array_equal(segment.read(name, range(1, 3)), array[1:3])


def test_a_deleted_segment_stays_readable(tmp_path: Path) -> None:
    given = written(tmp_path / "a.seg")
    segment = Segment.open(tmp_path / "a.seg")
    (tmp_path / "a.seg").unlink()
    np.testing.assert_array_equal(segment.arrays["vectors"], given)
    assert segment.verify() == []


def test_a_segment_is_durable_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    for module, name in ((os, "fsync"), (os, "write")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, real=real, name=name: (steps.append(name), real(*args))[1])
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda *args: (steps.append("replace"), replace(*args))[1])
    written(tmp_path / "a.seg")
    assert steps[-4:] == ["write", "fsync", "replace", "fsync"]
