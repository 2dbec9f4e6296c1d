"""Writing and reading a store: what goes in comes out, and what may not go in is refused by name."""

import errno
import json
import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from polysem.data.collection import Skipped
from polysem.data.store import FeatureManifest, FeatureStore, StoreEntry, StoreError, StoreWriter
from polysem.errors import ConfigError, InputError

DIM = 6


def manifest(**changes: object) -> FeatureManifest:
    base = {"collection": "tiny", "fingerprint": "abc", "dim": DIM, "dtype": "float32", "encoder": {"name": "grid"}}
    return FeatureManifest(**{**base, **changes})  # type: ignore[arg-type]


def entries(*lengths: int, seed: int = 0, prefix: str = "item", summary: int = 0) -> list[StoreEntry]:
    draw = np.random.default_rng(seed)
    return [
        StoreEntry(
            f"{prefix}{i}",
            draw.normal(size=(n, DIM)).astype(np.float32),
            draw.normal(size=summary).astype(np.float32) if summary else None,
        )
        for i, n in enumerate(lengths)
    ]


def made(folder: Path, given: list[StoreEntry], **changes: object) -> FeatureStore:
    with StoreWriter(folder, manifest(**changes)) as writer:
        writer.add(given)
    return FeatureStore.open(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0), ("float16", 1e-3)])
def test_items_of_any_length_come_back_as_they_went_in(tmp_path: Path, dtype: str, tolerance: float) -> None:
    given = entries(3, 1, 7)
    store = made(tmp_path, given, dtype=dtype)
    assert store.ids == ["item0", "item1", "item2"]
    assert len(store) == 3
    assert store.dim == DIM
    assert store.fingerprint == "abc"
    assert store.nbytes == 11 * DIM * np.dtype(dtype).itemsize
    assert store.lengths.tolist() == [3, 1, 7]
    for entry in given:
        assert store[entry.id].dtype == dtype
        np.testing.assert_allclose(store[entry.id], entry.values, rtol=tolerance, atol=tolerance)


def test_an_item_is_a_read_only_view_of_the_file(tmp_path: Path) -> None:
    store = made(tmp_path, entries(3, 2))
    view = store["item1"]
    assert not view.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1.0


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_batch_is_the_items_padded_with_zeros(tmp_path: Path, dtype: str) -> None:
    store = made(tmp_path, entries(3, 1, 7), dtype=dtype)
    batch = store.batch([2, 0, 0])
    assert batch.values.shape == (3, 7, DIM)
    assert batch.values.dtype == torch.float32
    assert batch.lengths.tolist() == [7, 3, 3]
    for row, key in enumerate(["item2", "item0", "item0"]):
        real = batch.values[row][batch.mask[row]]
        np.testing.assert_array_equal(real.numpy(), store[key].astype(np.float32))
    assert not batch.values[1, 3:].any()
    assert store.batch([0], dtype=dtype).values.dtype == getattr(torch, dtype)


def test_a_batch_without_preadv_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made(tmp_path, entries(3, 1, 7, summary=4))
    expected = store.batch([1, 2])
    monkeypatch.delattr(os, "preadv")
    found = FeatureStore.open(tmp_path).batch([1, 2])
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.summary, expected.summary)  # type: ignore[arg-type]


def test_global_features_are_kept_beside_the_tokens(tmp_path: Path) -> None:
    given = entries(3, 1, 7, summary=4)
    store = made(tmp_path, given)
    assert store.summary_dim == 4
    np.testing.assert_array_equal(store.summary("item2"), given[2].summary)
    np.testing.assert_array_equal(store["item2"], given[2].values)
    summary = store.batch([1, 2]).summary
    assert summary is not None
    np.testing.assert_array_equal(summary[1].numpy(), given[2].summary)


def test_an_item_without_its_global_feature_is_refused(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, manifest()) as writer:
        writer.add(entries(2, summary=4))
        with pytest.raises(InputError, match="'other0' has a global feature of width 0, the others 4"):
            writer.add(entries(2, prefix="other"))


@pytest.mark.parametrize("positions", [[], [3], [-1], [[0]]])
def test_positions_outside_the_store_are_refused(tmp_path: Path, positions: list[int]) -> None:
    with pytest.raises(InputError, match="positions from 0 to 2"):
        made(tmp_path, entries(1, 1, 1)).batch(positions)


def test_an_id_without_features_is_refused_with_the_reason(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, manifest()) as writer:
        writer.add(entries(2), [Skipped("torn.jpg", "the file is empty (0 bytes).")])
    store = FeatureStore.open(tmp_path)
    assert store.skipped == (Skipped("torn.jpg", "the file is empty (0 bytes)."),)
    assert store.positions(["item0"]).tolist() == [0]
    with pytest.raises(StoreError, match=r"1 of 2 items have no features .*'torn.jpg' \(the file is empty"):
        store.positions(["item0", "torn.jpg"])
    with pytest.raises(StoreError, match=r"'later'.*not extracted yet"):
        store["later"]


def test_a_store_travels_to_another_process_as_its_folder(tmp_path: Path) -> None:
    store = made(tmp_path, entries(2, 5))
    store.batch([0])
    again = pickle.loads(pickle.dumps(store))
    assert torch.equal(again.batch([0, 1]).values, store.batch([0, 1]).values)


def test_shards_are_begun_when_the_last_one_is_full(tmp_path: Path) -> None:
    given = entries(*range(1, 9))
    with StoreWriter(tmp_path, manifest(), shard_bytes=100) as writer:
        for entry in given:
            writer.add([entry])
    assert len(list(tmp_path.glob("shard-*.bin"))) == 5
    store = FeatureStore.open(tmp_path)
    store.verify()
    for entry in given:
        np.testing.assert_array_equal(store[entry.id], entry.values)


def test_the_reader_sees_the_union_of_all_ranks(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, manifest(), rank=0) as first, StoreWriter(tmp_path, manifest(), rank=1) as second:
        second.add(entries(2, 3, prefix="b"))
        first.add(entries(4, prefix="a"))
    store = FeatureStore.open(tmp_path)
    store.verify()
    assert store.ids == ["a0", "b0", "b1"]
    np.testing.assert_array_equal(store["b1"], entries(2, 3, prefix="b")[1].values)
    with StoreWriter(tmp_path, manifest(), rank=2) as third:
        assert third.done == {"a0", "b0", "b1"}


def test_a_second_writer_of_the_same_rank_is_refused(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, manifest()), pytest.raises(StoreError, match="written by another process"):
        StoreWriter(tmp_path, manifest())
    StoreWriter(tmp_path, manifest()).close()


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"fingerprint": "other"}, "weights alone"),
        ({"fingerprint": "other", "encoder": {"name": "patch"}}, "encoder name: 'grid' in the store, 'patch' now"),
        ({"fingerprint": "other", "preprocessing": {"size": 9}}, "preprocessing size: None in the store, 9 now"),
        ({"dtype": "float16"}, "dtype: 'float32' in the store, 'float16' now"),
        ({"dim": 7}, "dim: 6 in the store, 7 now"),
        ({"collection": "huge"}, "collection: 'tiny' in the store, 'huge' now"),
    ],
)
def test_features_of_another_kind_are_refused_with_the_difference_and_the_remedy(
    tmp_path: Path, changes: dict[str, object], named: str
) -> None:
    made(tmp_path, entries(2))
    before = contents(tmp_path)
    with pytest.raises(StoreError, match=f"{named}.*Extract into another folder"):
        StoreWriter(tmp_path, manifest(**changes))
    assert contents(tmp_path) == before


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ConfigError, match="float16 or float32, not as 'int8'"):
        manifest(dtype="int8")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_features_that_are_not_numbers_are_refused_with_the_item(tmp_path: Path, bad: float, dtype: str) -> None:
    given = entries(2, 3)
    given[1].values[2, 4] = bad
    with StoreWriter(tmp_path, manifest(dtype=dtype)) as writer:
        with pytest.raises(InputError, match="'item1': the features hold NaN or infinity"):
            writer.add(given)
        writer.add(given[:1])
    assert FeatureStore.open(tmp_path).ids == ["item0"]


def test_a_feature_beyond_float16_is_refused_with_the_item_and_the_remedy(tmp_path: Path) -> None:
    given = entries(2, 3)
    given[1].values[2, 4] = -7e4
    with (
        StoreWriter(tmp_path, manifest(dtype="float16")) as writer,
        pytest.raises(InputError, match=r"'item1': a feature of 7e\+04 is beyond float16.*--dtype float32"),
    ):
        writer.add(given)
    assert np.abs(made(tmp_path / "wide", given)["item1"]).max() == np.float32(7e4)


@pytest.mark.parametrize("shape", [(0, DIM), (3, DIM + 1), (DIM,)])
def test_features_of_another_shape_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with StoreWriter(tmp_path, manifest()) as writer, pytest.raises(InputError, match=r"'x': .*\(tokens, 6\)"):
        writer.add([StoreEntry("x", np.zeros(shape, np.float32))])


def test_an_id_is_stored_once(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, manifest()) as writer:
        writer.add(entries(2))
        with pytest.raises(StoreError, match="'item0' is in the store already"):
            writer.add(entries(2))
        with pytest.raises(StoreError, match="'twin0' is in the store already"):
            writer.add(entries(2, prefix="twin") * 2)


def test_a_folder_without_a_store_is_refused_with_the_command_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"not a feature store.*polysem features"):
        FeatureStore.open(tmp_path)


def test_a_store_of_a_later_version_or_with_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    made(tmp_path, entries(2))
    path = tmp_path / "manifest.json"
    later = {**json.loads(path.read_text()), "version": 99}
    path.write_text(json.dumps(later))
    with pytest.raises(StoreError, match="version 99"):
        FeatureStore.open(tmp_path)
    path.write_text(path.read_text()[:-9])
    with pytest.raises(StoreError, match="damaged"):
        FeatureStore.open(tmp_path)


def test_one_flipped_bit_is_found_and_the_items_named(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, manifest()) as writer:
        for part in range(3):
            writer.add(entries(2, 3, prefix=f"part{part}-"))
    FeatureStore.open(tmp_path).verify()
    path = tmp_path / "shard-000-00000.bin"
    damaged = bytearray(path.read_bytes())
    damaged[5 * DIM * 4 + 10] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match=r"2 of 6 items .*'part1-0', 'part1-1'\], in shard-000-00000.bin"):
        FeatureStore.open(tmp_path).verify()


@pytest.mark.parametrize("lost", [True, False])
def test_a_shard_that_was_cut_or_lost_is_refused(tmp_path: Path, lost: bool) -> None:
    made(tmp_path, entries(2, 3))
    path = tmp_path / "shard-000-00000.bin"
    if lost:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match="cut or lost"):
        FeatureStore.open(tmp_path)
    with pytest.raises(StoreError, match="shorter than its journal says"):
        StoreWriter(tmp_path, manifest())


# ---------------------------------------------------------------------------------------- what the disk may refuse


@pytest.mark.parametrize("victim", ["shard", "journal"])
def test_a_full_disk_is_named_and_costs_nothing_that_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    writer = StoreWriter(tmp_path, manifest())
    writer.add(entries(2, 3))
    writer.commit()
    committed = contents(tmp_path)
    real, calls = os.write, 0

    def fills_up(descriptor: int, content: memoryview) -> int:
        nonlocal calls
        calls += 1
        # Half of it still fits; the shard is written first, the journal second.
        if calls == (1 if victim == "shard" else 2):
            return real(descriptor, content[: len(content) // 2])
        if calls == (2 if victim == "shard" else 3):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, content)

    monkeypatch.setattr(os, "write", fills_up)

    def add_and_commit() -> None:
        writer.add(entries(4, prefix="late"))
        writer.commit()

    with pytest.raises(StoreError, match=r"disk is full.*run the same command again"):
        add_and_commit()
    assert contents(tmp_path) == committed
    add_and_commit()
    writer.close()
    store = FeatureStore.open(tmp_path)
    store.verify()
    assert store.ids == ["item0", "item1", "late0"]


def test_a_real_limit_of_the_system_is_met_with_a_message(tmp_path: Path) -> None:
    made(tmp_path, entries(2))
    script = f"""
import resource, numpy as np
from pathlib import Path
from polysem.data.store import *
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
with StoreWriter({str(tmp_path)!r}, FeatureManifest("tiny", "abc", {DIM}, "float32", {{"name": "grid"}})) as writer:
    for i in range(20):
        writer.add([StoreEntry(f"more{{i}}", np.ones((5, {DIM}), np.float32))])
        if i == 3:
            writer.commit()
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "StoreError: Cannot write to" in run.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 2000
    store = FeatureStore.open(tmp_path)
    store.verify()
    assert store.ids == ["item0", *(f"more{i}" for i in range(4))]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"Cannot create .*file"):
        StoreWriter(tmp_path / "file" / "store", manifest())
